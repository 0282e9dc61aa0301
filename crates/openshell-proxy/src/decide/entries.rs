//! Entries of lists, judged as if they were used.

use std::collections::{HashMap, HashSet};

use openshell_policy::network::rpc::glob::{CompiledNameGlob, Effect, NameGlob};
use openshell_policy::network::rpc::{RpcRule, RpcRules, is_strict_name};

use crate::decide::message::rpc::list::ListKind;

/// The judge of the entries of one list. Names that the same patterns match have one verdict, so a
/// long list takes few evaluations.
pub struct Entries<J> {
    /// Judges an entry by itself.
    judge: J,
    /// `None` if each entry is judged by itself.
    names: Option<Names>,
    known: HashMap<Class, bool>,
}

/// The names that rules for tools, or for prompts, have.
pub(super) struct Names {
    written: HashSet<String>,
    patterns: Vec<CompiledNameGlob>,
}

/// The number of patterns above which each entry is judged by itself: a server chooses the names, and
/// each set of patterns is a class.
const PATTERNS: usize = u64::BITS as usize;

/// What names have in common that no rule tells apart.
#[derive(PartialEq, Eq, Hash)]
struct Class {
    is_strict: bool,
    has_nul: bool,
    /// A bit for each pattern.
    matches: u64,
}

impl<J: Fn(&str) -> bool> Entries<J> {
    pub(super) fn new(judge: J, names: Option<Names>) -> Self {
        Self {
            judge,
            names,
            known: HashMap::new(),
        }
    }

    /// Returns true if a client may see the entry `name`, because it could be used.
    pub fn permit(&mut self, name: &str) -> bool {
        match self.names.as_ref().and_then(|names| names.class(name)) {
            Some(class) => {
                let judge = || (self.judge)(name);
                *self.known.entry(class).or_insert_with(judge)
            }
            None => (self.judge)(name),
        }
    }
}

impl Names {
    /// Returns the names in the rules of `endpoints` for a list; `None` if it holds no names, or they
    /// have more than [`PATTERNS`].
    pub(super) fn of<'e>(
        kind: ListKind,
        endpoints: impl Iterator<Item = &'e RpcRules>,
    ) -> Option<Self> {
        let globs: fn(&RpcRule) -> Vec<&NameGlob> = match kind {
            ListKind::Tools => |rule| rule.tools.iter().flatten().collect(),
            ListKind::Prompts => |rule| rule.name.iter().collect(),
            ListKind::Resources | ListKind::Templates => return None,
        };
        let mut names = Self {
            written: HashSet::new(),
            patterns: Vec::new(),
        };
        for endpoint in endpoints {
            let allow = endpoint.rules.iter().flatten();
            let allow = allow.map(|rule| (rule, Effect::Allow));
            let deny = endpoint.deny_rules.iter();
            for (rule, effect) in allow.chain(deny.map(|rule| (rule, Effect::Deny))) {
                for glob in globs(rule) {
                    names.add(glob, effect);
                    if names.patterns.len() > PATTERNS {
                        return None;
                    }
                }
            }
        }
        Some(names)
    }

    fn add(&mut self, glob: &NameGlob, effect: Effect) {
        if glob.is_pattern() {
            self.patterns.push(glob.compiled(effect));
        } else {
            self.written.insert(glob.as_str().to_owned());
        }
    }

    /// Returns the class of `name`; `None` if a rule names it.
    fn class(&self, name: &str) -> Option<Class> {
        if self.written.contains(name) {
            return None;
        }
        let matches = self.patterns.iter().fold(0, |matches, glob| {
            matches << 1 | u64::from(glob.is_match(name))
        });
        Some(Class {
            is_strict: is_strict_name(name),
            has_nul: name.contains('\0'),
            matches,
        })
    }
}
