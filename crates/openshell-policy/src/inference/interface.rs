//! Interfaces of models, with one row for each: its word, its requests, and the answer of a
//! `mock://` backend.

use crate::violation::ViolationKind;

macro_rules! interfaces {
    ($($variant:ident $word:literal $method:ident [$($path:literal $kind:literal),+] $streams:ident;)+) => {
        /// Interface of a model.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "`as_str` is the documentation of each")]
        pub enum Interface {
            $($variant,)+
        }

        impl Interface {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            const fn row(self) -> &'static Row {
                match self {
                    $(Self::$variant => &Row {
                        word: $word,
                        method: Method::$method,
                        calls: &[$(($path, $kind)),+],
                        answer: include_str!(concat!("../../../../data/mock/", $word, ".json")),
                        events: events!($streams $word),
                    },)+
                }
            }
        }

        const WORDS: &str = words!($($word)+);
    };
}

/// The events of a streamed answer, if the interface can stream.
macro_rules! events {
    (streams $word:literal) => {
        Some(include_str!(concat!(
            "../../../../data/mock/",
            $word,
            ".sse"
        )))
    };
    (whole $word:literal) => {
        None
    };
}

/// All words, separated by commas.
macro_rules! words {
    ($first:literal $($word:literal)*) => {
        concat!($first, $(", ", $word),*)
    };
}

struct Row {
    word: &'static str,
    method: Method,
    calls: &'static [(&'static str, &'static str)],
    answer: &'static str,
    events: Option<&'static str>,
}

/// Method of the requests of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `GET`, without a body.
    Get,
    /// `POST`, with the model in a JSON body.
    Post,
}

impl Method {
    /// Returns the method as requests write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
        }
    }
}

// Each row has the interface, its word in route files and logs, its method, its paths, and the form
// of its answers. Behind each path is the kind of the request in logs; a path that ends in a slash
// stands for everything below it. `data/mock` holds the answers of a `mock://` backend by word:
// `.json`, and `.sse` for an interface that streams.
interfaces! {
    OpenaiChatCompletions "openai_chat_completions" Post ["/v1/chat/completions" "chat_completion"] streams;
    OpenaiCompletions "openai_completions" Post ["/v1/completions" "completion"] streams;
    OpenaiResponses "openai_responses" Post ["/v1/responses" "responses"] streams;
    OpenaiEmbeddings "openai_embeddings" Post ["/v1/embeddings" "embeddings"] whole;
    AnthropicMessages "anthropic_messages" Post ["/v1/messages" "messages", "/v1/messages/count_tokens" "count_tokens"] streams;
    ModelDiscovery "model_discovery" Get ["/v1/models" "models_list", "/v1/models/" "models_get"] whole;
}

impl Interface {
    /// Parses a word, case-insensitively and without surrounding blanks.
    ///
    /// # Errors
    /// Fails if the text is not such a word.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let word = text.trim().to_ascii_lowercase();
        let known = Self::ALL
            .iter()
            .copied()
            .find(|interface| interface.as_str() == word);
        known.ok_or(ViolationKind::UnknownWord {
            word: text.to_owned(),
            known: WORDS,
        })
    }

    /// Returns the word in route files and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.row().word
    }

    /// Returns the method of its requests.
    #[must_use]
    pub const fn method(self) -> Method {
        self.row().method
    }

    /// Returns the kind of a request for `path`, which is in canonical form and without its query;
    /// `None` if the interface has no such request.
    #[must_use]
    pub fn kind_of(self, path: &str) -> Option<&'static str> {
        let is_for =
            |known: &str| path == known || (known.ends_with('/') && path.starts_with(known));
        self.row()
            .calls
            .iter()
            .find(|(known, _)| is_for(known))
            .map(|(_, kind)| *kind)
    }

    /// Returns the answer of a `mock://` backend, in which `{model}` stands for the model.
    #[must_use]
    pub fn mock_answer(self) -> &'static str {
        self.row().answer.trim_end()
    }

    /// Returns the same answer as server-sent events; `None` if the interface does not stream.
    #[must_use]
    pub const fn mock_events(self) -> Option<&'static str> {
        self.row().events
    }
}

#[cfg(test)]
mod tests {
    use super::Interface;

    #[test]
    fn words_are_unique_and_each_request_is_of_one_interface() {
        for interface in Interface::ALL {
            assert_eq!(
                Interface::parse(&interface.as_str().to_ascii_uppercase()),
                Ok(*interface)
            );
            for (path, _) in interface.row().calls {
                let of = |other: &&Interface| {
                    other.method() == interface.method() && other.kind_of(path).is_some()
                };
                assert_eq!(Interface::ALL.iter().filter(of).count(), 1, "{path}");
            }
            assert!(interface.mock_answer().contains("{model}"));
        }
    }
}
