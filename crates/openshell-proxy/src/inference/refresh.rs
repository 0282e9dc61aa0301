//! Routes of a bundle that somebody else keeps: fetched at the start and again, and taken when they have changed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::inference::route::{Inference, RouteTable};

/// What a source gives.
#[derive(Debug)]
pub struct Bundle {
    /// Another one means other routes.
    pub revision: String,
    /// The routes.
    pub table: RouteTable,
}

/// Why a source gives nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// There is nothing for this sandbox, and that is nothing to worry about.
    #[error("the sandbox has no inference routes")]
    NotForUs,
    /// Something went wrong.
    #[error("{0}")]
    Failed(String),
}

/// Where bundles come from.
pub trait BundleSource: Send + Sync {
    /// The bundle of this moment.
    fn fetch(&self) -> impl Future<Output = Result<Bundle, FetchError>> + Send;
}

/// The interval where nobody says another.
const INTERVAL: Duration = Duration::from_secs(5);

/// The interval that a variable says, in seconds; five where it says none.
#[must_use]
pub fn interval(seconds: Option<&str>) -> Duration {
    let seconds = seconds.and_then(|text| text.trim().parse().ok()).filter(|seconds| *seconds > 0);
    seconds.map_or(INTERVAL, Duration::from_secs)
}

/// Routes that are kept as their source has them.
#[derive(Debug)]
pub struct Kept<S> {
    source: S,
    inference: Arc<Inference>,
    revision: String,
}

impl<S: BundleSource> Kept<S> {
    /// Fetches for the first time. Without a bundle there are no models for as long as the sandbox lives; one without routes may
    /// get some.
    pub async fn start(source: S) -> Option<Self> {
        match source.fetch().await {
            Ok(Bundle { revision, table }) => {
                Some(Self { source, inference: Arc::new(Inference::new(table)), revision })
            }
            Err(FetchError::NotForUs) => None,
            Err(error) => {
                tracing::warn!("there are no models: their routes could not be fetched: {error}");
                None
            }
        }
    }

    /// The routes, as they are kept.
    #[must_use]
    pub fn inference(&self) -> Arc<Inference> {
        Arc::clone(&self.inference)
    }

    /// Fetches again every `interval`, for ever. While that fails the routes stay.
    pub async fn run(mut self, interval: Duration) {
        let mut ticks = tokio::time::interval(interval);
        // After an outage there is nothing to catch up with.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            match self.source.fetch().await {
                Ok(Bundle { revision, table }) if revision != self.revision => {
                    self.inference.replace(table);
                    self.revision = revision;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!("routes stay as they were: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use openshell_policy::inference::Interface;
    use openshell_policy::yaml;

    use super::{Bundle, BundleSource, FetchError, Kept, interval};
    use crate::inference::route::{Inference, Route, RouteTable};

    fn table(names: &[&str]) -> RouteTable {
        let route = |name: &&str| {
            format!(
                "{{name: {name}, endpoint: \"mock://x\", model: m, protocols: [model_discovery], budget: {{max_requests: 1}}}}"
            )
        };
        let file =
            yaml::routes(&format!("routes: [{}]", names.iter().map(route).collect::<Vec<_>>().join(", "))).unwrap();
        RouteTable::new(file.routes.into_iter().map(|spec| Route::new(spec, None).unwrap()), file.max_request_bytes)
    }

    /// Gives what is in it, one after the other, and the last for ever.
    #[derive(Clone)]
    struct Fake(Arc<Mutex<VecDeque<Answer>>>);

    /// A revision and the names of its routes.
    type Answer = Result<(&'static str, &'static [&'static str]), FetchError>;

    impl Fake {
        fn new(answers: &[Answer]) -> Self {
            Self(Arc::new(Mutex::new(answers.iter().cloned().collect())))
        }
    }

    impl BundleSource for Fake {
        async fn fetch(&self) -> Result<Bundle, FetchError> {
            let mut answers = self.0.lock().unwrap();
            let answer = if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() };
            answer.map(|(revision, names)| Bundle { revision: revision.to_owned(), table: table(names) })
        }
    }

    fn names(inference: &Inference) -> Vec<String> {
        inference.table().serving(Interface::ModelDiscovery).map(|route| route.name.clone()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn inf_20_routes_that_come_later_are_served_and_stay_while_their_source_is_away() {
        let failed = Err(FetchError::Failed("away".to_owned()));
        let answers = [
            Ok(("1", &[][..])),
            failed.clone(),
            Ok(("2", &["a"][..])),
            failed,
            Ok(("2", &["ignored"][..])),
            Ok(("3", &["b", "sandbox-system"][..])),
        ];
        let kept = Kept::start(Fake::new(&answers)).await.unwrap();
        let inference = kept.inference();
        let task = tokio::spawn(kept.run(Duration::from_secs(5)));
        let mut seen = Vec::new();
        for _ in 0..6 {
            seen.push(names(&inference).join(","));
            tokio::time::sleep(Duration::from_millis(5001)).await;
        }
        assert_eq!(seen, ["", "", "a", "a", "a", "b"]);
        task.abort();
    }

    #[tokio::test]
    async fn without_a_first_bundle_there_are_no_models() {
        for error in [FetchError::NotForUs, FetchError::Failed("x".to_owned())] {
            assert!(Kept::start(Fake::new(&[Err(error)])).await.is_none());
        }
    }

    #[test]
    fn a_route_that_comes_again_has_spent_what_it_had() {
        let inference = Inference::new(table(&["a", "b"]));
        let first =
            |inference: &Inference| Arc::clone(inference.table().serving(Interface::ModelDiscovery).next().unwrap());
        assert_eq!(first(&inference).spend(0), Ok(()));
        inference.replace(table(&["a", "c"]));
        assert_eq!(first(&inference).spend(0), Err("max_requests"));
    }

    #[test]
    fn the_interval_is_five_seconds_unless_somebody_says_another() {
        for junk in [None, Some("0"), Some("soon"), Some("-1"), Some("")] {
            assert_eq!(interval(junk), Duration::from_secs(5));
        }
        assert_eq!(interval(Some(" 30 ")), Duration::from_secs(30));
    }
}
