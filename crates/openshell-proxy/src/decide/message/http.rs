//! HTTP requests in the form in which they are judged: method, canonical target, and other readings
//! of the path.

use std::collections::BTreeMap;

use hyper::{Method, Uri};
use regorus::Value;
use serde_json::json;

use crate::denial::refusal::Refusal;
use crate::wire::http::target::{RequestTarget, TargetError, decoded, folded, without_case};

/// The parts of requests that the rules of a connection read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decide) struct Reads {
    /// True if they read queries.
    pub(in crate::decide) queries: bool,
    /// True if they look at the other readings of a path.
    pub(in crate::decide) readings: bool,
    /// True if they may read all parts of messages in bodies.
    pub(in crate::decide) whole_messages: bool,
}

/// An HTTP request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpRequest {
    /// Method.
    pub method: Method,
    /// The canonical target, or the target as it was sent if no rules judge it.
    pub target: RequestTarget,
}

impl HttpRequest {
    /// Returns a `method` request for `uri` as it was sent, for connections without rules.
    #[must_use]
    pub fn as_written(method: &Method, uri: &Uri) -> Self {
        Self {
            method: method.clone(),
            target: RequestTarget::as_written(uri),
        }
    }

    /// Normalizes a `method` request for `uri`.
    ///
    /// # Errors
    /// The target has no canonical form.
    pub fn canonical(
        method: &Method,
        uri: &Uri,
        takes_encoded_slash: bool,
    ) -> Result<Self, TargetError> {
        let target = RequestTarget::canonical(method, uri, takes_encoded_slash)?;
        Ok(Self {
            method: method.clone(),
            target,
        })
    }

    /// Returns the method and path that denials, proposals and observations name.
    pub(in crate::decide) fn rule(&self) -> (String, String) {
        (self.method.to_string(), self.target.path().to_owned())
    }

    /// Returns the number of bytes that the workload chose.
    pub(in crate::decide) fn bytes(&self) -> usize {
        let Self { method, target } = self;
        let texts = [
            Some(target.path()),
            target.without_parameters(),
            target.query(),
            Some(method.as_str()),
        ];
        texts.iter().flatten().map(|text| text.len()).sum()
    }

    /// Returns the parts on which a decision depends; they are its key in the cache.
    pub(in crate::decide) fn key(&self, reads: Reads) -> Self {
        let target = if reads.queries {
            self.target.clone()
        } else {
            self.target.without_query()
        };
        Self {
            method: self.method.clone(),
            target,
        }
    }

    /// Checks that the query can be decoded, if the rules read it.
    pub(in crate::decide) fn check(&self, reads: Reads) -> Result<(), Refusal> {
        if reads.queries {
            self.target.parameters().map_err(Refusal::target)?;
        }
        Ok(())
    }

    /// Returns the inputs of the rules: the request, and, if its path has parameters, the request
    /// without them.
    pub(in crate::decide) fn inputs(&self, reads: Reads) -> Result<(Value, Option<Value>), String> {
        let mut parameters: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in self
            .target
            .parameters()
            .map_err(|error| error.to_string())?
        {
            parameters.entry(name).or_default().push(value);
        }
        let form = |path: &str| {
            let readings = if reads.readings {
                readings(path)
            } else {
                Vec::new()
            };
            let method = self.method.as_str();
            let caseless: Vec<_> = readings
                .iter()
                .map(|reading| without_case(reading))
                .collect();
            Value::from(json!({
                "method": method,
                "path": path,
                "readings": readings,
                "caseless_readings": caseless,
                "query_params": parameters,
            }))
        };
        Ok((
            form(self.target.path()),
            self.target.without_parameters().map(form),
        ))
    }
}

/// Returns how servers may read the canonical `path`: as it is; percent-decoded once or twice; and
/// each of these decoded forms without parameters, blanks around segments, and dots at the ends of
/// segments. Decoded readings have repeated slashes folded; each reading is given with and without
/// a slash at its end.
pub(in crate::decide) fn readings(path: &str) -> Vec<String> {
    let mut all = Vec::with_capacity(4);
    let whole = decoded(path);
    let twice = decoded(&whole);
    let bare = |segment: &str| {
        let name = segment.split(';').next().unwrap_or_default();
        name.trim_start()
            .trim_end_matches(|last: char| last == '.' || last.is_whitespace())
            .to_owned()
    };
    let bare = |path: &str| path.split('/').map(bare).collect::<Vec<_>>().join("/");
    for reading in [
        path.to_owned(),
        folded(&whole),
        folded(&bare(&whole)),
        folded(&twice),
        folded(&bare(&twice)),
    ] {
        let bare = reading.trim_end_matches('/');
        for reading in [bare.to_owned(), format!("{bare}/")] {
            if !reading.is_empty() && !all.contains(&reading) {
                all.push(reading);
            }
        }
    }
    all
}
