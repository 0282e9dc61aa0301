//! A snapshot of one policy generation, immutable except for its cached decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use openshell_policy::document::StaticParts;
use openshell_policy::network::binary::Binary;
use openshell_policy::network::endpoint::{Endpoint, L7};
use openshell_policy::network::host::Host;
use openshell_policy::policy::{Policy, Unfit};
use openshell_policy::violation::Violations;
use openshell_policy::yaml;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use regorus::Value;
use serde_json::{Value as Json, json};

use crate::decide::engine::{BUILT_IN, Decision, Engine, EngineError, Query, Session};
use crate::decide::line::Line;
use crate::decide::message::judging;
use crate::decide::rego_data::{rego_data, without_names};
use crate::decide::rules::{MessageCache, MessageWeighter, Rules, Slice};
use crate::denial::refusal::{Matches, Nearest};
use crate::ground::limits::Limits;
use crate::ground::peer::Program;
use crate::ground::target::Target;

/// Resolves the symlinks among a policy's binaries; an entry for a symlink also means its target.
pub type Links<'l> = &'l dyn Fn(&str) -> Option<String>;

/// Error of rules that cannot be used with a policy.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum LoadError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the answer of the policy rules to `{query}` is not valid in a policy document")]
    Static {
        query: &'static str,
        source: Violations,
    },
}

/// Error of lines that cannot be added to a policy.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum LineError {
    #[error("the rules are custom ones")]
    CustomRules,
    #[error(transparent)]
    Unfit(#[from] Unfit),
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The policy, rules and cached decisions of one generation. It never changes; a reload makes
/// another.
#[derive(Debug)]
pub struct Snapshot {
    generation: u64,
    policy: Policy,
    /// Why everything is refused, if the policy that should be in force is invalid.
    invalid: Option<String>,
    /// Targets of the symlinks among the policy's binaries.
    links: BTreeMap<String, String>,
    /// Entries that are exact or not pinned.
    special: Vec<Binary>,
    rules: SnapshotRules,
    decisions: Cache<CacheKey, Arc<CachedDecision>, DecisionWeighter>,
    messages: Arc<MessageCache>,
}

/// The rules of a generation, with an engine over its policy.
#[derive(Debug)]
enum SnapshotRules {
    /// The built-in rules, which are known to compile. Their engine is made when it is first
    /// needed, because many commands never open a connection.
    BuiltIn(OnceLock<Result<Engine, EngineError>>),
    /// Custom rules.
    Custom(Engine),
}

/// Estimated bytes of a rule cached with a decision.
const RULE_BYTES: usize = 256;

/// Weighs a cached decision by the bytes in it that the workload chose, and by its rules.
#[derive(Clone, Debug)]
struct DecisionWeighter;

impl Weighter<CacheKey, Arc<CachedDecision>> for DecisionWeighter {
    fn weight(&self, key: &CacheKey, decision: &Arc<CachedDecision>) -> u64 {
        let program = &key.program;
        let texts = program
            .ancestors
            .iter()
            .chain(&program.cmdline_paths)
            .chain([&program.executable]);
        let bytes: usize = texts.map(|text| text.len() + size_of::<String>()).sum();
        let rules = match &decision.verdict {
            Verdict::Allow { endpoints, .. } => endpoints
                .iter()
                .filter_map(Endpoint::l7)
                .map(L7::count)
                .sum(),
            Verdict::Deny { .. } => 0,
        };
        (bytes + rules * RULE_BYTES).max(Limits::DECISION_BYTES) as u64
    }
}

/// Input of a decision on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CacheKey {
    program: Program,
    target: Target,
}

/// Decision on a connection, and the rules for its messages.
#[derive(Debug)]
pub(super) struct CachedDecision {
    pub(super) verdict: Verdict,
    pub(super) rules: Option<Arc<Rules>>,
}

/// Verdict of the rules on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Permitted by `policy`, with the demands of `endpoints`.
    Allow {
        policy: Option<String>,
        endpoints: Vec<Endpoint>,
    },
    /// Refused.
    Deny { nearest: Option<Nearest> },
}

impl Snapshot {
    /// Creates a generation of `policy` under the built-in rules or under `rules`; `links` resolves
    /// symlinks.
    ///
    /// # Errors
    /// The rules do not compile, or change the static parts of the policy into an invalid document.
    pub fn new(
        generation: u64,
        policy: Policy,
        rules: Option<&str>,
        links: Links<'_>,
    ) -> Result<Self, LoadError> {
        let links = targets(&policy, links);
        let (policy, rules) = match rules.filter(|rules| *rules != BUILT_IN) {
            None => (policy, SnapshotRules::BuiltIn(OnceLock::new())),
            // Custom rules may change the static data; their answers must fit the schema of a
            // policy document.
            Some(rules) => {
                if has_messages(&policy) {
                    Engine::check_messages(rules)?;
                }
                let engine = Engine::new(rules, rego_data(&policy, &links)?)?;
                (
                    with_static_answers(&engine, policy)?,
                    SnapshotRules::Custom(engine),
                )
            }
        };
        let bytes = (Limits::DECISIONS * Limits::DECISION_BYTES) as u64;
        let decisions = Cache::with_weighter(Limits::DECISIONS, bytes, DecisionWeighter);
        let messages = Arc::new(Cache::with_weighter(
            Limits::DECISIONS,
            bytes,
            MessageWeighter,
        ));
        let all = policy
            .network()
            .values()
            .flat_map(|policy| &policy.binaries);
        let special = all
            .filter(|binary| binary.exact || !binary.pinned)
            .cloned()
            .collect();
        Ok(Self {
            generation,
            policy,
            invalid: None,
            links,
            special,
            rules,
            decisions,
            messages,
        })
    }

    /// Creates a generation in place of an invalid policy, which refuses every connection for
    /// `reason`. The static parts are those of `policy`.
    ///
    /// # Errors
    /// No error occurs, because the built-in rules are used.
    pub fn refusing(generation: u64, policy: Policy, reason: String) -> Result<Self, LoadError> {
        let snapshot = Self::new(generation, policy.without_network(), None, &|_| None)?;
        Ok(Self {
            invalid: Some(reason),
            ..snapshot
        })
    }

    /// Returns the same generation with another `number`.
    #[must_use]
    pub(super) fn numbered(self, number: u64) -> Self {
        Self {
            generation: number,
            ..self
        }
    }

    /// Creates the generation `number` of the same policy together with `lines`.
    ///
    /// # Errors
    /// The lines do not fit beside the policy, or the rules are custom ones, of which nobody knows
    /// what lines mean to them.
    pub fn with_lines(&self, number: u64, lines: &[Line]) -> Result<Self, LineError> {
        if !self.is_built_in() {
            return Err(LineError::CustomRules);
        }
        let added = lines.iter().map(|line| (&line.name, &line.policy));
        let policy = self.policy.with_network_policies(added)?;
        let target = |path: &str| self.links.get(path).cloned();
        let snapshot = Self::new(number, policy, None, &target)?;
        Ok(Self {
            invalid: self.invalid.clone(),
            ..snapshot
        })
    }

    /// Returns why everything is refused, if the policy that should be in force is invalid.
    #[must_use]
    pub fn invalid(&self) -> Option<&str> {
        self.invalid.as_deref()
    }

    /// Returns the number of the generation: 1 for the first, growing with every reload.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns false for custom rules. Only those may decide by arguments; the built-in rules only
    /// put them into reasons.
    #[must_use]
    pub fn is_built_in(&self) -> bool {
        matches!(self.rules, SnapshotRules::BuiltIn(_))
    }

    /// Makes what the first decision would otherwise have to make. Takes milliseconds.
    pub fn prepare(&self) {
        // Each decision reports the error.
        let _ = self.engine();
    }

    fn engine(&self) -> Result<&Engine, EngineError> {
        match &self.rules {
            SnapshotRules::Custom(engine) => Ok(engine),
            SnapshotRules::BuiltIn(engine) => {
                let made = || rego_data(&self.policy, &self.links).and_then(Engine::built_in);
                let engine = engine.get_or_init(made);
                engine.as_ref().map_err(Clone::clone)
            }
        }
    }

    /// Returns the symlinks among the policy's binaries, each with its target, which is meant as
    /// well.
    #[must_use]
    pub fn links(&self) -> &BTreeMap<String, String> {
        &self.links
    }

    /// Returns the policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Evaluates the rules on a connection of `program` to `target`; results are cached.
    pub(super) fn judge(
        &self,
        program: &Program,
        target: &Target,
    ) -> Result<Arc<CachedDecision>, EngineError> {
        let mut key = CacheKey {
            program: program.clone(),
            target: target.clone(),
        };
        if self.is_built_in() {
            key.program.cmdline_paths.clear();
        }
        self.decisions
            .get_or_insert_with(&key, || self.evaluate(&key).map(Arc::new))
    }

    /// Returns the endpoints that permit `program` to reach `target`.
    pub(crate) fn permitting(&self, program: &Program, target: &Target) -> Vec<Endpoint> {
        match self.judge(program, target).as_deref() {
            Ok(CachedDecision {
                verdict: Verdict::Allow { endpoints, .. },
                ..
            }) => endpoints.clone(),
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    /// Returns true if `program` has an entry that is valid only for unmodified programs.
    pub(crate) fn has_exact_entry(&self, program: &Program) -> bool {
        self.entries_of(&program.executable)
            .any(|binary| binary.exact)
    }

    /// Returns false if an entry allows the file at `path` to change.
    pub(crate) fn is_pinned(&self, path: &str) -> bool {
        self.entries_of(path).all(|binary| binary.pinned)
    }

    /// Returns true if an entry names `program` or one of its ancestors, also by a pattern. Always
    /// true for custom rules, which may name any program.
    pub(crate) fn lists(&self, program: &Program) -> bool {
        let mut binaries = self
            .policy
            .network()
            .values()
            .flat_map(|policy| &policy.binaries);
        let paths = || std::iter::once(&program.executable).chain(&program.ancestors);
        !self.is_built_in() || binaries.any(|binary| paths().any(|path| self.is_of(binary, path)))
    }

    /// Returns true if `binary` names the program at `path`.
    fn is_of(&self, binary: &Binary, path: &str) -> bool {
        binary.path.matches(path)
            || self
                .links
                .get(&binary.to_string())
                .is_some_and(|target| target == path)
    }

    /// Returns the entries for `path` that are exact or not pinned.
    fn entries_of(&self, path: &str) -> impl Iterator<Item = &Binary> {
        self.special
            .iter()
            .filter(move |binary| self.is_of(binary, path))
    }

    /// Returns true if the built-in rules, which ignore arguments, have permitted `program` to
    /// reach `target` before.
    pub(crate) fn has_permitted(&self, program: &Program, target: &Target) -> bool {
        let key = CacheKey {
            program: program.clone(),
            target: target.clone(),
        };
        let is_permit =
            |decision: Arc<CachedDecision>| matches!(decision.verdict, Verdict::Allow { .. });
        self.is_built_in() && self.decisions.get(&key).is_some_and(is_permit)
    }

    /// Returns why the rules refuse `program` access to `target`; empty if they give no reason.
    pub(super) fn deny_reason(
        &self,
        program: &Program,
        target: &Target,
    ) -> Result<String, EngineError> {
        let mut session = self.engine()?.about(Value::from(input(program, target)))?;
        let mut reason = session.ask_text(Query::DenyReason)?.unwrap_or_default();
        reason.truncate(reason.floor_char_boundary(Limits::REASON_BYTES));
        Ok(reason)
    }

    /// Opens a session about a message, whose parts are `form`, over the whole policy.
    #[cfg(test)]
    pub(in crate::decide) fn session(
        &self,
        program: &Program,
        target: &Target,
        form: crate::decide::message::Input,
    ) -> Session {
        let mut input = input(program, target);
        input.extend(form);
        self.engine().unwrap().about(Value::from(input)).unwrap()
    }

    fn evaluate(
        &self,
        CacheKey { program, target }: &CacheKey,
    ) -> Result<CachedDecision, EngineError> {
        let input = input(program, target);
        let mut session = self.engine()?.about(Value::from(input.clone()))?;
        let decided = session.decide(Decision::Connection)?;
        if !decided.is_permitted {
            let nearest = decided.nearest.as_ref().and_then(nearest);
            return Ok(CachedDecision {
                verdict: Verdict::Deny { nearest },
                rules: None,
            });
        }
        let policy = decided.policy;
        let Permitted {
            endpoints,
            engine,
            judging_policy,
        } = if self.is_built_in() {
            self.permitted(&mut session)?
        } else {
            self.permitted_by_foreign_rules(&mut session)?
        };
        let slice = Slice {
            engine,
            is_built_in: self.is_built_in(),
            input,
            policy: judging_policy.or_else(|| policy.clone()),
        };
        let rules = Rules::new(slice, &endpoints, Arc::clone(&self.messages));
        Ok(CachedDecision {
            verdict: Verdict::Allow { policy, endpoints },
            rules: rules.map(Arc::new),
        })
    }

    /// Looks up the endpoints that the built-in rules name, and creates an engine over the slice of
    /// the policy that judges the connection's messages.
    fn permitted(&self, session: &mut Session) -> Result<Permitted, EngineError> {
        let answer = session
            .ask(Query::MatchedEndpoints)?
            .unwrap_or(Value::Undefined);
        let unexpected = || EngineError::Answer {
            query: Query::MatchedEndpoints.name().to_owned(),
            answer: answer.to_string(),
            expected: "a set of policies and places of endpoints",
        };
        let engine = self.engine()?;
        let data = &engine.data()["network_policies"];
        let mut permitted = Vec::new();
        let mut slices = BTreeMap::new();
        let mut judging_policy = None;
        for pair in answer.as_set().ok().ok_or_else(unexpected)? {
            let key = &pair[0];
            let index = &pair[1];
            let name = key.as_string().ok().ok_or_else(unexpected)?;
            let place = index
                .as_u64()
                .ok()
                .and_then(|index| usize::try_from(index).ok())
                .ok_or_else(unexpected)?;
            let mut policies = self.policy.network().iter();
            let policy =
                policies.find_map(|(known, policy)| (known.as_str() == &**name).then_some(policy));
            let endpoint = policy
                .and_then(|policy| policy.endpoints.get(place))
                .ok_or_else(unexpected)?;
            // The answer is sorted, so this is the smallest key.
            if judging_policy.is_none() && judging(endpoint).is_some() {
                judging_policy = Some(name.to_string());
            }
            slices
                .entry(key.clone())
                .or_insert_with(Vec::new)
                .push(data[key]["endpoints"][index].clone());
            if !permitted.contains(endpoint) {
                permitted.push(endpoint.clone());
            }
        }
        let slices = slices.into_iter().map(|(key, endpoints)| {
            let slice = [
                ("endpoints", Value::from(endpoints)),
                ("binaries", data[&key]["binaries"].clone()),
            ];
            let slice: BTreeMap<Value, Value> = slice
                .into_iter()
                .map(|(key, part)| (Value::from(key), part))
                .collect();
            (key, Value::from(slice))
        });
        let slices: BTreeMap<Value, Value> = slices.collect();
        let data = BTreeMap::from([(Value::from("network_policies"), Value::from(slices))]);
        Ok(Permitted {
            endpoints: permitted,
            engine: engine.over(Value::from(data)),
            judging_policy,
        })
    }

    /// Parses the endpoints that custom rules return, which must fit the schema of a policy
    /// document. The engine keeps all data, because only the custom rules know which data they
    /// read.
    fn permitted_by_foreign_rules(&self, session: &mut Session) -> Result<Permitted, EngineError> {
        let endpoints = match session.ask(Query::MatchedEndpointConfigs)? {
            Some(configs) => configs,
            None => Value::from(
                session
                    .ask(Query::MatchedEndpointConfig)?
                    .into_iter()
                    .collect::<Vec<_>>(),
            ),
        };
        let text = without_names(&endpoints)?;
        let endpoints = yaml::endpoints(&text).map_err(|violations| EngineError::Answer {
            query: Query::MatchedEndpointConfigs.name().to_owned(),
            answer: violations.to_string(),
            expected: "a set of endpoints",
        })?;
        let engine = self.engine()?;
        Ok(Permitted {
            endpoints,
            engine: engine.over(engine.data().clone()),
            judging_policy: None,
        })
    }
}

/// Returns true if an endpoint judges messages in bodies.
fn has_messages(policy: &Policy) -> bool {
    let policies = policy.network().values();
    let mut endpoints = policies.flat_map(|policy| &policy.endpoints);
    endpoints.any(|endpoint| endpoint.l7().is_some_and(|l7| l7.rpc.is_some()))
}

/// Resolves the symlinks among the binaries of `policy`, each path once.
fn targets(policy: &Policy, links: Links<'_>) -> BTreeMap<String, String> {
    let binaries = policy
        .network()
        .values()
        .flat_map(|policy| &policy.binaries);
    let paths: BTreeSet<_> = binaries.map(ToString::to_string).collect();
    let paths = paths.into_iter();
    let targets = paths.filter_map(|path| links(&path).map(|target| (path, target)));
    targets.filter(|(path, target)| path != target).collect()
}

/// Endpoints that permit a connection.
struct Permitted {
    endpoints: Vec<Endpoint>,
    /// An engine over the data that judges the connection's messages.
    engine: Engine,
    /// The key of the policy that judges messages (the smallest, if several do), if it is known.
    judging_policy: Option<String>,
}

fn input(program: &Program, target: &Target) -> BTreeMap<Value, Value> {
    let parts = [("exec", exec(program)), ("network", network(target))];
    parts
        .into_iter()
        .map(|(key, part)| (Value::from(key), Value::from(part)))
        .collect()
}

fn exec(program: &Program) -> Json {
    json!({
        "path": program.executable,
        "ancestors": program.ancestors,
        "cmdline_paths": program.cmdline_paths,
        "is_modified": program.is_modified,
    })
}

fn network(target: &Target) -> Json {
    let is_address = matches!(target.host, Host::Address(_));
    json!({ "host": target.host.to_string(), "port": target.port, "is_address": is_address })
}

fn nearest(answer: &Value) -> Option<Nearest> {
    let text = |key: &str| answer[key].as_string().ok();
    let matches = match &**text("matches")? {
        "endpoint" => Matches::Endpoint,
        "host_and_binary" => Matches::HostAndBinary,
        "binary" => Matches::Binary,
        "host" => Matches::Host,
        _ => return None,
    };
    Some(Nearest {
        name: text("name")?.to_string(),
        matches,
    })
}

/// Replaces the static parts of `policy` with the answers of custom rules.
fn with_static_answers(engine: &Engine, policy: Policy) -> Result<Policy, LoadError> {
    let mut parts = serde_json::to_value(StaticParts::of(&policy))
        .map_err(|error| EngineError::Data(error.to_string()))?;
    let mut session = engine.about(Value::new_object())?;
    let queries = [
        (Query::FilesystemPolicy, "filesystem_policy"),
        (Query::LandlockPolicy, "landlock"),
        (Query::ProcessPolicy, "process"),
    ];
    for (query, key) in queries {
        if let Some(answer) = session.ask(query)? {
            parts[key] = serde_json::to_value(&answer)
                .map_err(|error| EngineError::Evaluate(error.to_string()))?;
        }
    }
    let (answered, _) = yaml::policy(&parts.to_string()).map_err(|source| LoadError::Static {
        query: "filesystem_policy, landlock_policy or process_policy",
        source,
    })?;
    Ok(policy.with_static_parts(&answered))
}
