//! The policy engine: rules are compiled once, and each evaluation runs on its own virtual machine.

use std::sync::{Arc, OnceLock};

use regorus::Value;
use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::program::Program;
use regorus::rvm::vm::RegoVM;

/// The built-in rules.
pub const BUILT_IN: &str = include_str!("../../../../data/sandbox-policy.rego");

/// The rules that the proxy asks.
const QUERIES: &str = include_str!("queries.rego");

/// What the rules are asked alone; each is the name of a rule in the package `openshell.sandbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the rules")]
pub enum Query {
    MatchedEndpoints,
    MatchedEndpointConfigs,
    MatchedEndpointConfig,
    DenyReason,
    FilesystemPolicy,
    LandlockPolicy,
    ProcessPolicy,
}

impl Query {
    const ALL: [Self; 7] = [
        Self::MatchedEndpoints,
        Self::MatchedEndpointConfigs,
        Self::MatchedEndpointConfig,
        Self::DenyReason,
        Self::FilesystemPolicy,
        Self::LandlockPolicy,
        Self::ProcessPolicy,
    ];

    /// Returns the name of the rule.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::MatchedEndpoints => "matched_endpoints",
            Self::MatchedEndpointConfigs => "matched_endpoint_configs",
            Self::MatchedEndpointConfig => "matched_endpoint_config",
            Self::DenyReason => "deny_reason",
            Self::FilesystemPolicy => "filesystem_policy",
            Self::LandlockPolicy => "landlock_policy",
            Self::ProcessPolicy => "process_policy",
        }
    }
}

/// What the rules decide, with what is asked about the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A connection.
    Connection,
    /// A request in it.
    Request,
    /// A message in the body of a request.
    Message,
}

impl Decision {
    const ALL: [Self; 3] = [Self::Connection, Self::Request, Self::Message];

    fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Request => "request",
            Self::Message => "message",
        }
    }
}

/// The answer to a decision.
#[derive(Debug, Default)]
pub struct Decided {
    /// True if the rules permit it.
    pub is_permitted: bool,
    /// The policy that permits it, or whose rules deny it.
    pub policy: Option<String>,
    /// Why it is refused.
    pub reason: Option<String>,
    /// The policy that is nearest to permitting it.
    pub nearest: Option<Value>,
}

fn entry_point(rule: &str) -> String {
    format!("data.openshell.query.{rule}")
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
        query: String,
        answer: String,
        expected: &'static str,
    },
}

/// Limit of instructions, at which an evaluation fails. A policy, an endpoint or a binary takes
/// about 50 each, so the limit is enough for the largest document.
const MAX_INSTRUCTIONS: usize = 20_000_000;

/// Number of compiled glob patterns that the whole process caches.
const GLOB_CACHE: usize = 32_768;

/// Compiles `rules`, which must not conflict with `data`.
fn compile(rules: &str, data: Value) -> Result<Arc<Program>, EngineError> {
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
        .add_policy("queries".to_owned(), QUERIES.to_owned())
        .map_err(not_compiled)?;
    engine
        .add_data(data)
        .map_err(|error| EngineError::Data(error.to_string()))?;
    let alone = Query::ALL.iter().map(|query| query.name());
    let decisions = Decision::ALL.iter().map(|decision| decision.name());
    let entry_points: Vec<String> = alone.chain(decisions).map(entry_point).collect();
    let entry_points: Vec<&str> = entry_points.iter().map(String::as_str).collect();
    let first: regorus::Rc<str> = entry_points[0].into();
    let policy = engine
        .compile_with_entrypoint(&first)
        .map_err(not_compiled)?;
    let program = Compiler::compile_from_policy(&policy, &entry_points).map_err(not_compiled)?;
    let mut program = Arc::unwrap_or_clone(program);
    // Only listings of the program read these.
    program.sources = Vec::new();
    program.instruction_spans = Vec::new();
    Ok(Arc::new(program))
}

/// Rules and data, immutable.
pub struct Engine {
    rules: Arc<Program>,
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
            rules: compile(rules, data.clone())?,
            data,
        })
    }

    /// Returns the built-in rules over `document`. They are compiled once per process.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn built_in(document: serde_json::Value) -> Result<Self, EngineError> {
        static RULES: OnceLock<Result<Arc<Program>, EngineError>> = OnceLock::new();
        let rules = RULES
            .get_or_init(|| compile(BUILT_IN, Value::new_object()))
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
        let rule: regorus::Rc<str> = "data.openshell.sandbox.allow_message".into();
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
            rules: Arc::clone(&self.rules),
            data,
        }
    }

    /// Opens a session for queries about one `input`.
    ///
    /// # Errors
    /// The data conflicts with the rules.
    pub fn about(&self, input: Value) -> Result<Session, EngineError> {
        let mut machine = RegoVM::new();
        machine.set_max_instructions(MAX_INSTRUCTIONS);
        machine.set_strict_builtin_errors(true);
        machine.load_program(Arc::clone(&self.rules));
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

/// An engine that was given an input.
pub struct Session {
    machine: RegoVM,
}

impl Session {
    /// Returns what the rules decide.
    ///
    /// # Errors
    /// The evaluation failed or took too long, or an answer has a wrong type.
    pub fn decide(&mut self, decision: Decision) -> Result<Decided, EngineError> {
        let parts = self.evaluate(decision.name())?;
        // What is undefined permits nothing.
        let mut decided = Decided::default();
        for part in parts.as_set().into_iter().flatten() {
            let value = &part[1];
            let rule = part[0].as_string().map_or("", |rule| &**rule);
            match rule {
                "is_permitted" => decided.is_permitted = true,
                "nearest_policy" => decided.nearest = Some(value.clone()),
                "request_deny_reason" | "message_deny_reason" => {
                    decided.reason = Some(text(rule, value)?);
                }
                _ => decided.policy = Some(text(rule, value)?),
            }
        }
        Ok(decided)
    }

    /// Evaluates `query`; returns `None` if it is undefined.
    ///
    /// # Errors
    /// The evaluation failed or took too long.
    pub fn ask(&mut self, query: Query) -> Result<Option<Value>, EngineError> {
        let value = self.evaluate(query.name())?;
        Ok(Some(value).filter(|value| *value != Value::Undefined))
    }

    /// Evaluates `query`, whose result must be a string.
    ///
    /// # Errors
    /// As for [`Self::ask`], or the result is not a string.
    pub fn ask_text(&mut self, query: Query) -> Result<Option<String>, EngineError> {
        let answer = self.ask(query)?;
        answer.map(|answer| text(query.name(), &answer)).transpose()
    }

    fn evaluate(&mut self, rule: &str) -> Result<Value, EngineError> {
        self.machine
            .execute_entry_point_by_name(&entry_point(rule))
            .map_err(|error| EngineError::Evaluate(error.to_string()))
    }
}

/// Returns `answer` to `query` as a text.
fn text(query: &str, answer: &Value) -> Result<String, EngineError> {
    let not_a_text = |_| EngineError::Answer {
        query: query.to_owned(),
        answer: answer.to_string(),
        expected: "a text",
    };
    let text = answer.as_string().map_err(not_a_text)?;
    Ok(text.to_string())
}
