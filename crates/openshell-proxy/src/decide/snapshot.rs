//! One immutable generation of the policy, with the decisions already made by it.

use std::collections::BTreeMap;
use std::sync::Arc;

use openshell_policy::network::endpoint::Endpoint;
use openshell_policy::network::host::Host;
use openshell_policy::policy::Policy;
use openshell_policy::violation::{Violations, Warning};
use openshell_policy::yaml;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use regorus::Value;
use serde_json::{Value as Json, json};

use crate::decide::document::{Links, document};
use crate::decide::engine::{BUILT_IN, Engine, EngineError, Query};
use crate::decide::request::{self, Remembered, RequestRules};
use crate::limits::Limits;
use crate::peer::Program;
use crate::target::Target;

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum LoadError {
    #[error(transparent)]
    Data(#[from] Violations),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the policy rules answer `{query}` with what no policy document may hold")]
    Static { query: &'static str, source: Violations },
}

/// Policy, rules and decisions of one generation. Never changes; a reload makes another.
#[derive(Debug)]
pub struct Snapshot {
    generation: u64,
    policy: Policy,
    engine: Engine,
    /// Whether arguments may count: the built-in rules only put them into reasons.
    is_built_in: bool,
    decisions: Cache<Question, Arc<Answer>, QuestionBytes>,
    requests: Arc<Remembered>,
}

/// What a rule that a decision comes with takes, about.
const RULE_BYTES: usize = 256;

/// Weighs decisions by what the workload chooses of them, and what comes with them.
#[derive(Clone, Debug)]
struct QuestionBytes;

impl Weighter<Question, Arc<Answer>> for QuestionBytes {
    fn weight(&self, question: &Question, answer: &Arc<Answer>) -> u64 {
        let program = &question.program;
        let texts = program.ancestors.iter().chain(&program.cmdline_paths).chain([&program.executable]);
        let bytes: usize = texts.map(|text| text.len() + size_of::<String>()).sum();
        let rules = match &answer.verdict {
            Verdict::Allow { endpoints, .. } => {
                endpoints.iter().filter_map(Endpoint::l7).map(|l7| l7.rules.len() + l7.deny_rules.len()).sum()
            }
            Verdict::Deny { .. } => 0,
        };
        (bytes + rules * RULE_BYTES).max(Limits::DECISION_BYTES) as u64
    }
}

/// What a decision depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    program: Program,
    target: Target,
}

/// What is remembered of a connection: what the rules say about it, and what they say about its requests.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    pub(super) rules: Option<Arc<RequestRules>>,
}

/// What the rules say about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Permitted by `policy`, as these endpoints say.
    Allow { policy: Option<String>, endpoints: Vec<Endpoint> },
    /// Refused.
    Deny { nearest: Option<Nearest> },
}

/// The policy that comes nearest to permitting a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// Its key.
    pub name: String,
    /// What of it matches.
    pub matches: Matches,
}

/// What of a policy matches a connection that it does not permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matches {
    /// Host and port, not the program.
    Endpoint,
    /// Host and program, not the port.
    HostAndBinary,
    /// The program.
    Binary,
    /// The host.
    Host,
}

impl Snapshot {
    /// Loads a policy document under the built-in rules, or under `rules`; `links` knows what its symlinks stand for.
    ///
    /// # Errors
    /// Everything that is wrong with the document, or what is wrong with the rules.
    pub fn load(
        generation: u64,
        data: &str,
        rules: Option<&str>,
        links: Links<'_>,
    ) -> Result<(Self, Vec<Warning>), LoadError> {
        let (policy, warnings) = yaml::policy(data)?;
        let rules = rules.filter(|rules| *rules != BUILT_IN);
        let engine = Engine::new(rules.unwrap_or(BUILT_IN), document(&policy, links))?;
        // Foreign rules may answer otherwise than the data says; what they answer is held to the same schema.
        let policy = match rules {
            None => policy,
            Some(_) => static_parts(&engine, &policy)?,
        };
        let bytes = (Limits::DECISIONS * Limits::DECISION_BYTES) as u64;
        let decisions = Cache::with_weighter(Limits::DECISIONS, bytes, QuestionBytes);
        let requests = Arc::new(Cache::with_weighter(Limits::DECISIONS, bytes, request::QuestionBytes));
        Ok((Self { generation, policy, engine, is_built_in: rules.is_none(), decisions, requests }, warnings))
    }

    /// Counts from 1; grows with every reload.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether its rules are the built-in ones.
    pub(super) fn is_built_in(&self) -> bool {
        self.is_built_in
    }

    /// What the sandbox may do.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What the rules say about `program` going to `target`; the same question is evaluated once.
    pub(super) fn judge(&self, program: &Program, target: &Target) -> Result<Arc<Answer>, EngineError> {
        let mut question = Question { program: program.clone(), target: target.clone() };
        if self.is_built_in {
            question.program.cmdline_paths.clear();
        }
        self.decisions.get_or_insert_with(&question, || self.evaluate(&question).map(Arc::new))
    }

    /// Why the rules refuse `program` going to `target`; empty where they do not say.
    pub(super) fn deny_reason(&self, program: &Program, target: &Target) -> Result<String, EngineError> {
        let mut reason =
            self.engine.about(Value::from(input(program, target)))?.ask_text(Query::DenyReason)?.unwrap_or_default();
        reason.truncate(reason.floor_char_boundary(Limits::REASON_BYTES));
        Ok(reason)
    }

    fn evaluate(&self, Question { program, target }: &Question) -> Result<Answer, EngineError> {
        let mut session = self.engine.about(Value::from(input(program, target)))?;
        if session.ask(Query::NetworkAction)? != Some(json!("allow")) {
            let nearest = nearest(session.ask(Query::NearestPolicy)?);
            return Ok(Answer { verdict: Verdict::Deny { nearest }, rules: None });
        }
        let policy = session.ask_text(Query::MatchedNetworkPolicy)?;
        let endpoints = match session.ask(Query::MatchedEndpointConfigs)? {
            Some(configs) => configs,
            None => Json::Array(session.ask(Query::MatchedEndpointConfig)?.into_iter().collect()),
        };
        let matching = session.ask(Query::MatchingPolicies)?;
        let parsed = yaml::endpoints(&endpoints.to_string()).map_err(|violations| EngineError::Answer {
            query: "matched_endpoint_configs",
            answer: violations.to_string(),
            expected: "a set of endpoints",
        })?;
        let (engine, named) = match (&matching, &endpoints) {
            (Some(Json::Array(matching)), Json::Array(endpoints)) if self.is_built_in => {
                self.slice(matching, endpoints)
            }
            // What foreign rules read only they know.
            _ => (self.engine.over(self.engine.data().clone()), policy.clone()),
        };
        let asked = (exec(program), network(target));
        let rules = RequestRules::new(
            (engine, self.is_built_in),
            asked,
            &parsed,
            named.or_else(|| policy.clone()),
            Arc::clone(&self.requests),
        );
        Ok(Answer { verdict: Verdict::Allow { policy, endpoints: parsed }, rules: rules.map(Arc::new) })
    }

    /// The rules over what they need for the requests of a connection that the policies `matching` permit at `endpoints`,
    /// whatever else the policy holds; and the smallest key of a policy that judges requests.
    fn slice(&self, matching: &[Json], endpoints: &[Json]) -> (Engine, Option<String>) {
        let endpoints: Vec<Value> = endpoints.iter().cloned().map(Value::from).collect();
        let data = self.engine.data();
        let mut policies = BTreeMap::new();
        let mut judging = None;
        for name in matching.iter().cloned().map(Value::from) {
            let policy = &data["network_policies"][&name];
            let matched = policy["endpoints"].as_array().into_iter().flat_map(|all| all.iter());
            let matched: Vec<Value> = matched.filter(|endpoint| endpoints.contains(endpoint)).cloned().collect();
            let judges = matched.iter().any(|endpoint| endpoint["protocol"] == Value::from("rest"));
            if let (true, None, Ok(name)) = (judges, &judging, name.as_string()) {
                judging = Some(name.to_string());
            }
            let slice = [("endpoints", Value::from(matched)), ("binaries", policy["binaries"].clone())];
            let slice: BTreeMap<Value, Value> =
                slice.into_iter().map(|(key, value)| (Value::from(key), value)).collect();
            policies.insert(name, Value::from(slice));
        }
        let data = BTreeMap::from([(Value::from("network_policies"), Value::from(policies))]);
        (self.engine.over(Value::from(data)), judging)
    }
}

fn input(program: &Program, target: &Target) -> Json {
    json!({ "exec": exec(program), "network": network(target) })
}

fn exec(program: &Program) -> Json {
    json!({
        "path": program.executable,
        "ancestors": program.ancestors,
        "cmdline_paths": program.cmdline_paths,
    })
}

fn network(target: &Target) -> Json {
    let is_address = matches!(target.host, Host::Address(_));
    json!({ "host": target.host.to_string(), "port": target.port, "is_address": is_address })
}

fn nearest(answer: Option<Json>) -> Option<Nearest> {
    let answer = answer?;
    let matches = match answer.get("matches")?.as_str()? {
        "endpoint" => Matches::Endpoint,
        "host_and_binary" => Matches::HostAndBinary,
        "binary" => Matches::Binary,
        "host" => Matches::Host,
        _ => return None,
    };
    Some(Nearest { name: answer.get("name")?.as_str()?.to_owned(), matches })
}

/// `policy` with the parts that take effect at start as the rules answer them.
fn static_parts(engine: &Engine, policy: &Policy) -> Result<Policy, LoadError> {
    let mut whole = document(policy, &|_| None);
    let mut session = engine.about(Value::from(json!({})))?;
    let parts = [
        (Query::FilesystemPolicy, "filesystem_policy"),
        (Query::LandlockPolicy, "landlock"),
        (Query::ProcessPolicy, "process"),
    ];
    for (query, key) in parts {
        if let Some(answer) = session.ask(query)? {
            whole[key] = answer;
        }
    }
    let (policy, _) = yaml::policy(&whole.to_string()).map_err(|source| LoadError::Static {
        query: "filesystem_policy, landlock_policy or process_policy",
        source,
    })?;
    Ok(policy)
}
