//! The policy engine: rules are compiled once, and each evaluation runs on its own virtual machine.

use std::sync::{Arc, OnceLock};

use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::program::Program;
use regorus::rvm::vm::RegoVM;
use regorus::{CompiledPolicy, Value};

/// The built-in rules.
pub const BUILT_IN: &str = include_str!("../../../../data/sandbox-policy.rego");

/// The queries of the rules; each is the name of a rule in the package `openshell.sandbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the rules")]
pub enum Query {
    NetworkAction,
    MatchedNetworkPolicy,
    MatchedEndpoints,
    MatchedEndpointConfigs,
    MatchedEndpointConfig,
    DenyReason,
    NearestPolicy,
    MatchingPolicies,
    AllowRequest,
    AllowingPolicy,
    DenyingPolicy,
    RequestDenyReason,
    AllowMessage,
    MessageAllowingPolicy,
    MessageDenyingPolicy,
    MessageDenyReason,
    FilesystemPolicy,
    LandlockPolicy,
    ProcessPolicy,
}

impl Query {
    const ALL: [Self; 19] = [
        Self::NetworkAction,
        Self::MatchedNetworkPolicy,
        Self::MatchedEndpoints,
        Self::MatchedEndpointConfigs,
        Self::MatchedEndpointConfig,
        Self::DenyReason,
        Self::NearestPolicy,
        Self::MatchingPolicies,
        Self::AllowRequest,
        Self::AllowingPolicy,
        Self::DenyingPolicy,
        Self::RequestDenyReason,
        Self::AllowMessage,
        Self::MessageAllowingPolicy,
        Self::MessageDenyingPolicy,
        Self::MessageDenyReason,
        Self::FilesystemPolicy,
        Self::LandlockPolicy,
        Self::ProcessPolicy,
    ];

    /// Returns the name of the rule.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NetworkAction => "network_action",
            Self::MatchedNetworkPolicy => "matched_network_policy",
            Self::MatchedEndpoints => "matched_endpoints",
            Self::MatchedEndpointConfigs => "matched_endpoint_configs",
            Self::MatchedEndpointConfig => "matched_endpoint_config",
            Self::DenyReason => "deny_reason",
            Self::NearestPolicy => "nearest_policy",
            Self::MatchingPolicies => "matching_policies",
            Self::AllowRequest => "allow_request",
            Self::AllowingPolicy => "allowing_policy",
            Self::DenyingPolicy => "denying_policy",
            Self::RequestDenyReason => "request_deny_reason",
            Self::AllowMessage => "allow_message",
            Self::MessageAllowingPolicy => "message_allowing_policy",
            Self::MessageDenyingPolicy => "message_denying_policy",
            Self::MessageDenyReason => "message_deny_reason",
            Self::FilesystemPolicy => "filesystem_policy",
            Self::LandlockPolicy => "landlock_policy",
            Self::ProcessPolicy => "process_policy",
        }
    }

    fn entry_point(self) -> String {
        format!("data.openshell.query.{}", self.name())
    }
}

/// An error of rules that cannot be loaded or evaluated.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum EngineError {
    #[error("cannot compile the policy rules: {0}")]
    Compile(String),
    #[error("the policy rules must be in `package openshell.sandbox`")]
    Package,
    #[error(
        "the policy has an endpoint for JSON-RPC or MCP, and the policy rules have no \
         `allow_message`, so they would refuse every message; add that rule"
    )]
    NoMessages,
    #[error("cannot give the policy data to the rules: {0}")]
    Data(String),
    #[error("policy evaluation error: {0}")]
    Evaluate(String),
    #[error("policy evaluation error: {query} answered {answer}, which is not {expected}")]
    Answer {
        query: &'static str,
        answer: String,
        expected: &'static str,
    },
}

/// Limit of instructions, at which an evaluation fails. A policy, an endpoint or a binary takes
/// about 50 each, so the limit is enough for the largest document.
const MAX_INSTRUCTIONS: usize = 20_000_000;

/// Number of compiled glob patterns that the whole process caches.
const GLOB_CACHE: usize = 32_768;

/// Compiled rules, independent of the data over which they are evaluated.
#[derive(Clone)]
struct CompiledRules {
    policy: CompiledPolicy,
    program: Arc<Program>,
}

impl CompiledRules {
    /// Compiles `rules`; they must not conflict with `data`.
    fn new(rules: &str, data: Value) -> Result<Self, EngineError> {
        regorus::cache::configure(regorus::cache::Config {
            glob: GLOB_CACHE,
            ..regorus::cache::Config::default()
        });
        let mut engine = regorus::Engine::new();
        engine.set_strict_builtin_errors(true);
        let package = engine
            .add_policy("policy rules".to_owned(), rules.to_owned())
            .map_err(not_compiled)?;
        if package != "data.openshell.sandbox" {
            return Err(EngineError::Package);
        }
        engine
            .add_policy("queries".to_owned(), queries())
            .map_err(not_compiled)?;
        engine
            .add_data(data)
            .map_err(|error| EngineError::Data(error.to_string()))?;
        let entry_points = Query::ALL.map(Query::entry_point);
        let first: regorus::Rc<str> = entry_points[0].as_str().into();
        let policy = engine
            .compile_with_entrypoint(&first)
            .map_err(not_compiled)?;
        let program =
            Compiler::compile_from_policy(&policy, &entry_points.each_ref().map(String::as_str))
                .map_err(not_compiled)?;
        Ok(Self { policy, program })
    }
}

/// Rules and data, immutable.
pub struct Engine {
    rules: CompiledRules,
    data: Value,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Compiles `rules` over `document`.
    ///
    /// # Errors
    /// The rules do not compile, or are in another package.
    pub fn new(rules: &str, document: serde_json::Value) -> Result<Self, EngineError> {
        let data = Value::from(document);
        Ok(Self {
            rules: CompiledRules::new(rules, data.clone())?,
            data,
        })
    }

    /// Returns the built-in rules over `document`. They are compiled once per process.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn built_in(document: serde_json::Value) -> Result<Self, EngineError> {
        static RULES: OnceLock<Result<CompiledRules, EngineError>> = OnceLock::new();
        let rules = RULES
            .get_or_init(|| CompiledRules::new(BUILT_IN, Value::new_object()))
            .clone()?;
        Ok(Self {
            rules,
            data: Value::from(document),
        })
    }

    /// Checks that `rules`, which compile, can judge messages in bodies.
    ///
    /// # Errors
    /// They have no rule for that.
    pub fn check_messages(rules: &str) -> Result<(), EngineError> {
        let mut engine = regorus::Engine::new();
        engine
            .add_policy("policy rules".to_owned(), rules.to_owned())
            .map_err(not_compiled)?;
        let name = format!("data.openshell.sandbox.{}", Query::AllowMessage.name());
        let rule: regorus::Rc<str> = name.as_str().into();
        engine
            .compile_with_entrypoint(&rule)
            .map(drop)
            .map_err(|_| EngineError::NoMessages)
    }

    /// Returns the data of the rules.
    #[must_use]
    pub fn data(&self) -> &Value {
        &self.data
    }

    /// Returns the same rules over other data.
    #[must_use]
    pub fn over(&self, data: Value) -> Self {
        Self {
            rules: self.rules.clone(),
            data,
        }
    }

    /// Opens a session for queries about one `input`.
    ///
    /// # Errors
    /// The data conflicts with the rules.
    pub fn about(&self, input: Value) -> Result<Session, EngineError> {
        let mut machine = RegoVM::new_with_policy(self.rules.policy.clone());
        machine.set_max_instructions(MAX_INSTRUCTIONS);
        machine.set_strict_builtin_errors(true);
        machine.load_program(Arc::clone(&self.rules.program));
        machine
            .set_data(self.data.clone())
            .map_err(|error| EngineError::Data(error.to_string()))?;
        machine.set_input(input);
        Ok(Session { machine })
    }
}

fn not_compiled(error: impl std::fmt::Display) -> EngineError {
    EngineError::Compile(error.to_string())
}

/// Defines a rule for each query in a package that belongs to the engine, so that a query that
/// custom rules lack is undefined instead of an error.
fn queries() -> String {
    let rule = |query: Query| format!("{0} := data.openshell.sandbox.{0}\n", query.name());
    format!(
        "package openshell.query\n\nimport rego.v1\n\n{}",
        Query::ALL.map(rule).concat()
    )
}

/// An engine that was given an input.
pub struct Session {
    machine: RegoVM,
}

impl Session {
    /// Evaluates `query`; returns `None` if it is undefined.
    ///
    /// # Errors
    /// The evaluation failed or took too long.
    pub fn ask(&mut self, query: Query) -> Result<Option<Value>, EngineError> {
        let value = self
            .machine
            .execute_entry_point_by_name(&query.entry_point())
            .map_err(|error| EngineError::Evaluate(error.to_string()))?;
        Ok(Some(value).filter(|value| *value != Value::Undefined))
    }

    /// Evaluates `query`, whose result must be a string.
    ///
    /// # Errors
    /// As for [`Self::ask`], or the result is not a string.
    pub fn ask_text(&mut self, query: Query) -> Result<Option<String>, EngineError> {
        match self.ask(query)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.to_string())),
            Some(other) => Err(EngineError::Answer {
                query: query.name(),
                answer: other.to_string(),
                expected: "a text",
            }),
        }
    }
}
