//! Globs over names: of tools, of prompts, and of the texts in arguments.

use globset::{GlobBuilder, GlobMatcher};

use crate::network::binary::glob;
use crate::violation::ViolationKind;

/// A glob over names. Where it allows, `*` does not cross a `.`, and where it denies, it crosses
/// everything. A `/` is a character like any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameGlob(String);

/// What a rule with a glob does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It allows.
    Allow,
    /// It denies.
    Deny,
}

impl NameGlob {
    /// Parses a glob.
    ///
    /// # Errors
    /// Fails if the glob is empty or does not compile.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        glob(text)?;
        for effect in [Effect::Allow, Effect::Deny] {
            glob(&separated(text, effect).replace(PLACEHOLDER, "_"))?;
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the glob as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the glob matches more than one name.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.0.contains(['*', '?', '[', '{', '\\'])
    }

    /// Returns true if the glob matches every name that a rule with this effect meets.
    #[must_use]
    pub fn is_everything(&self, effect: Effect) -> bool {
        match effect {
            Effect::Allow => self.0 == "**",
            Effect::Deny => matches!(self.0.as_str(), "*" | "**"),
        }
    }

    /// Compiles the glob for a rule with this effect.
    #[must_use]
    pub fn compiled(&self, effect: Effect) -> CompiledNameGlob {
        // It has compiled in `parse`.
        let glob = GlobBuilder::new(&separated(&self.0, effect))
            .literal_separator(true)
            .build();
        CompiledNameGlob {
            glob: glob.ok().map(|glob| glob.compile_matcher()),
            effect,
        }
    }
}

/// A compiled glob over names.
#[derive(Clone, Debug)]
pub struct CompiledNameGlob {
    /// `None` matches nothing.
    glob: Option<GlobMatcher>,
    effect: Effect,
}

impl CompiledNameGlob {
    /// Returns true if `name` matches. One that holds NUL, which no glob can say, matches where it
    /// denies.
    #[must_use]
    pub fn is_match(&self, name: &str) -> bool {
        if name.contains(PLACEHOLDER) {
            return self.effect == Effect::Deny;
        }
        let is_match = |glob: &GlobMatcher| glob.is_match(separated(name, self.effect));
        self.glob.as_ref().is_some_and(is_match)
    }
}

/// Stands for `/`, the separator of the library, where it is no separator.
const PLACEHOLDER: char = '\0';

/// Writes `text` with the library's separator around its own, as `glob.match` of Rego does.
fn separated(text: &str, effect: Effect) -> String {
    let text = text.replace('/', PLACEHOLDER.encode_utf8(&mut [0; 4]));
    match effect {
        Effect::Allow => text.replace('.', "/./"),
        Effect::Deny => text,
    }
}

#[cfg(test)]
mod tests {
    use super::{Effect, NameGlob};

    #[test]
    fn a_wildcard_stops_at_a_dot_where_it_allows() {
        for (glob, name, allows, denies) in [
            ("search_*", "search_code", true, true),
            ("search_*", "search_a.b", false, true),
            ("a.**", "a.b.c", true, true),
            ("a.*", "a.b", true, true),
            ("a*b", "a/b", true, true),
            ("get", "Get", false, false),
            ("*", "", true, true),
            ("{a,b.c}", "b.c", true, true),
            ("a/*", "a\0x", false, true),
        ] {
            let parsed = NameGlob::parse(glob).unwrap();
            let is_match = |effect| parsed.compiled(effect).is_match(name);
            assert_eq!(is_match(Effect::Allow), allows, "{glob} {name}");
            assert_eq!(is_match(Effect::Deny), denies, "{glob} {name}");
        }
    }

    #[test]
    fn a_glob_that_does_not_compile_is_an_error() {
        for glob in ["", "[", "a\0", "{a", "[./-z]x[z-.]"] {
            assert!(NameGlob::parse(glob).is_err(), "{glob}");
        }
    }
}
