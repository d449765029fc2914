//! Finds where other programs' chains drop a query; follows jumps, gotos and verdict maps.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::NftError;
use super::batch::Socket;
use super::registers::Query;
use super::ruleset_dump::{BaseChain, Rule};
use super::verdict::{Element, Verdict, effects};

/// A position in a chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) chain: String,
    /// The rule at this position; `None` at the end of the chain.
    pub(crate) rule: Option<PlacedRule>,
}

/// A rule of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlacedRule {
    /// The rule's position in the chain, from 1.
    pub(crate) number: usize,
    /// The kernel's handle of the rule.
    pub(crate) handle: u64,
    /// Whether the rule is the last of its chain.
    pub(crate) is_last: bool,
}

/// What a chain does with a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Accepted,
    /// The rule at this place drops the query.
    Dropped(Place),
    /// The query leaves the chain here without a verdict: at its end, by a `return`, or at the end
    /// of a chain that a `goto` leads to.
    Passed(Place),
}

/// The chains of a table, read once each.
pub(crate) struct ChainWalk<'s> {
    socket: &'s mut Socket,
    family: &'static str,
    table: String,
    rules: BTreeMap<String, Rc<Vec<Rule>>>,
    sets: BTreeMap<String, Option<Vec<Element>>>,
    /// The first rule that may drop the query: its conditions or its verdict cannot be evaluated.
    may_drop: Option<Place>,
    /// How many more rules may be examined for this query.
    left: usize,
}

impl<'s> ChainWalk<'s> {
    pub(crate) fn of(socket: &'s mut Socket, chain: &BaseChain) -> Self {
        let BaseChain { family, table, .. } = chain;
        let (rules, sets) = (BTreeMap::new(), BTreeMap::new());
        Self { socket, family, table: table.clone(), rules, sets, may_drop: None, left: 0 }
    }

    /// Returns the outcome for a query, and the first rule that may drop the query before that.
    ///
    /// # Errors
    /// If the kernel does not list a chain.
    pub(crate) fn outcome(
        &mut self,
        chain: &str,
        query: &Query<'_>,
    ) -> Result<(Outcome, Option<Place>), NftError> {
        (self.left, self.may_drop) = (MOST_RULES, None);
        let outcome = self.follow(chain, query, 0)?;
        Ok((outcome, self.may_drop.take()))
    }

    fn follow(&mut self, chain: &str, query: &Query<'_>, depth: usize) -> Result<Outcome, NftError> {
        let end = Place { chain: chain.to_owned(), rule: None };
        let rules = self.rules_of(chain)?;
        let last = rules.last().map_or(0, |rule| rule.number);
        for rule in rules.iter() {
            let placed =
                PlacedRule { number: rule.number, handle: rule.handle, is_last: rule.number == last };
            let place = Place { chain: chain.to_owned(), rule: Some(placed) };
            let Some(left) = self.left.checked_sub(1).filter(|_| depth < DEEPEST) else {
                self.may_drop.get_or_insert(place);
                return Ok(Outcome::Passed(end));
            };
            self.left = left;
            let Some(statements) = &rule.statements else {
                self.may_drop.get_or_insert(place);
                continue;
            };
            let (socket, family, table, sets) = (&mut *self.socket, self.family, &self.table, &mut self.sets);
            let mut elements = |set: &str| {
                let listed = || socket.map_elements(family, table, set).ok();
                sets.entry(set.to_owned()).or_insert_with(listed).clone()
            };
            for effect in effects(statements, query, &mut elements) {
                match (effect.verdict, effect.is_certain) {
                    (Verdict::Accept, true) => return Ok(Outcome::Accepted),
                    (Verdict::Drop, true) => return Ok(Outcome::Dropped(place)),
                    (Verdict::Return, true) => return Ok(Outcome::Passed(place)),
                    (Verdict::Goto(to), true) => return self.follow(&to, query, depth + 1),
                    (Verdict::Jump(to), true) => match self.follow(&to, query, depth + 1)? {
                        Outcome::Passed(_) => {}
                        end => return Ok(end),
                    },
                    (Verdict::Jump(to) | Verdict::Goto(to), false) => {
                        if let Outcome::Dropped(_) = self.follow(&to, query, depth + 1)? {
                            self.may_drop.get_or_insert_with(|| place.clone());
                        }
                    }
                    (Verdict::Drop, false) if effect.is_of_map => {
                        self.may_drop.get_or_insert_with(|| place.clone());
                    }
                    (Verdict::Unknown, _) => {
                        self.may_drop.get_or_insert_with(|| place.clone());
                    }
                    // A single rule with a condition that cannot be evaluated, as of a
                    // NetworkPolicy, is ignored.
                    (Verdict::Drop | Verdict::Accept | Verdict::Return, false) => {}
                }
            }
        }
        Ok(Outcome::Passed(end))
    }

    fn rules_of(&mut self, chain: &str) -> Result<Rc<Vec<Rule>>, NftError> {
        if let Some(rules) = self.rules.get(chain) {
            return Ok(Rc::clone(rules));
        }
        let rules = Rc::new(self.socket.rules_of_chain(self.family, (&self.table, chain), MOST_RULES)?);
        self.rules.insert(chain.to_owned(), Rc::clone(&rules));
        Ok(rules)
    }
}

/// Maximum number of rules that are examined for one query.
const MOST_RULES: usize = 20_000;
/// Maximum depth of jumps: the kernel's NFT_JUMP_STACK_SIZE.
const DEEPEST: usize = 16;
