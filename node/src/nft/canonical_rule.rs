//! Converts rules to a canonical form, in which rules to be written and rules from the kernel's
//! listing compare equal.

use std::net::IpAddr;

use netlink_packet_netfilter::nftables::{
    Bitwise, ChainAttribute, Cmp, DataAttribute, ExpressionAttribute, Expressions, Hook, Immediate,
    ListAttribute, Lookup, NfTablesMessage, RuleAttribute, SetElementList, TableFlags,
};

use super::batch::{Batch, Statement, keys};
use super::ruleset_dump::Contents;
use super::statement::IFNAMSIZ;
use super::verdict::NF_DROP;

/// A rule: its chain and, for each expression, the name and the operand: a value to compare with,
/// to mask by or to load, or a set to look up.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shape {
    chain: String,
    expressions: Vec<(String, Option<Value>)>,
}

/// The operand of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Data(DataAttribute),
    Set(String),
}

impl Shape {
    fn of(attributes: &[RuleAttribute]) -> Self {
        let (mut chain, mut expressions) = (String::new(), Vec::new());
        for attribute in attributes {
            match attribute {
                RuleAttribute::Chain(name) => chain.clone_from(name),
                RuleAttribute::Expressions(all) => {
                    expressions = all.iter().filter_map(expression).collect();
                }
                _ => {}
            }
        }
        Self { chain, expressions }
    }

    /// Returns the addresses in the rule's expressions of type `of`: `cmp` compares with an
    /// address, `immediate` loads one.
    fn addresses(&self, of: &str) -> impl Iterator<Item = IpAddr> {
        self.expressions.iter().filter(move |(name, _)| name == of).filter_map(|(_, value)| match value {
            Some(Value::Data(DataAttribute::Value(octets))) => address(octets),
            _ => None,
        })
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// Returns the rules sorted by chain, as the kernel lists them whatever the order of insertion.
fn shapes<'r>(rules: impl Iterator<Item = &'r Vec<RuleAttribute>>) -> Vec<Shape> {
    let mut shapes: Vec<_> = rules.map(|rule| Shape::of(rule)).collect();
    shapes.sort_by(|one, other| one.chain.cmp(&other.chain));
    shapes
}

fn expression(statement: &Statement) -> Option<(String, Option<Value>)> {
    let ListAttribute::Element(attributes) = statement else { return None };
    let name = attributes.iter().find_map(|attribute| match attribute {
        ExpressionAttribute::Name(name) => Some(name.clone()),
        _ => None,
    })?;
    let value = attributes.iter().find_map(|attribute| match attribute {
        ExpressionAttribute::Data(Expressions::Cmp(parts)) => parts.iter().find_map(|part| match part {
            Cmp::Data(data) => Some(Value::Data(data.clone())),
            _ => None,
        }),
        // Two networks with the same first address differ only in the mask.
        ExpressionAttribute::Data(Expressions::Bitwise(parts)) => parts.iter().find_map(|part| match part {
            Bitwise::Mask(data) => Some(Value::Data(data.clone())),
            _ => None,
        }),
        ExpressionAttribute::Data(Expressions::Immediate(parts)) => {
            parts.iter().find_map(|part| match part {
                Immediate::Data(data) => Some(Value::Data(data.clone())),
                _ => None,
            })
        }
        ExpressionAttribute::Data(Expressions::Lookup(parts)) => parts.iter().find_map(|part| match part {
            Lookup::Set(set) => Some(Value::Set(set.clone())),
            _ => None,
        }),
        _ => None,
    });
    Some((name, value))
}

impl Batch {
    /// Returns the rules that the batch adds.
    fn rules(&self) -> impl Iterator<Item = &Vec<RuleAttribute>> {
        self.asked().filter_map(|message| match message {
            NfTablesMessage::NewRule(rule) => Some(&rule.attributes),
            _ => None,
        })
    }

    /// Returns the chains that the batch adds.
    fn chains(&self) -> impl Iterator<Item = &Vec<ChainAttribute>> {
        self.asked().filter_map(|message| match message {
            NfTablesMessage::NewChain(chain) => Some(&chain.attributes),
            _ => None,
        })
    }

    /// Returns how many chains and sets the batch adds.
    fn parts(&self) -> u32 {
        let is_part = |message: &&NfTablesMessage| {
            matches!(message, NfTablesMessage::NewChain(_) | NfTablesMessage::NewSet(_))
        };
        self.asked().filter(is_part).count() as u32
    }

    /// Returns the elements that the batch adds to a set, sorted.
    fn elements_of(&self, set: &str) -> Vec<Vec<u8>> {
        let added = self.asked().filter_map(|message| match message {
            NfTablesMessage::NewSetElement(added) => Some(&added.attributes),
            _ => None,
        });
        let is_of = |attributes: &&Vec<SetElementList>| {
            attributes.iter().any(|attribute| matches!(attribute, SetElementList::Set(name) if name == set))
        };
        let mut keys: Vec<_> = added.filter(is_of).flatten().flat_map(keys).collect();
        keys.sort_unstable();
        keys
    }
}

impl Contents {
    /// Whether the listed table equals the batch's table; `sets` names the listed sets.
    pub(crate) fn is_of(&self, batch: &Batch, sets: &[&str]) -> bool {
        let elements: Vec<_> = sets.iter().map(|set| batch.elements_of(set)).collect();
        let accepts = |chain: &Vec<ChainAttribute>| {
            chain.iter().all(|attribute| !matches!(attribute, ChainAttribute::Policy(NF_DROP)))
        };
        self.flags == TableFlags::empty()
            && self.parts == batch.parts()
            && self.chains.iter().all(accepts)
            && self
                .chains
                .iter()
                .filter_map(|chain| hook(chain))
                .eq(batch.chains().filter_map(|chain| hook(chain)))
            && shapes(self.rules.iter()) == shapes(batch.rules())
            && self.sets == elements
    }

    /// Whether the rules have the batch's expressions, in the same order. Operands are not
    /// compared, since kernels list them differently.
    pub(crate) fn is_like(&self, batch: &Batch) -> bool {
        let names = |shapes: Vec<Shape>| -> Vec<(String, Vec<String>)> {
            let names =
                |shape: Shape| (shape.chain, shape.expressions.into_iter().map(|(name, _)| name).collect());
            shapes.into_iter().map(names).collect()
        };
        names(shapes(self.rules.iter())) == names(shapes(batch.rules()))
    }

    /// Returns, for each rule of a chain, its address and the 16-bit number that it loads.
    pub(crate) fn loaded(&self, chain: &str) -> Vec<(IpAddr, u16)> {
        let of_chain = self.rules.iter().map(|rule| Shape::of(rule)).filter(|rule| rule.chain == chain);
        let number = |rule: &Shape| {
            rule.expressions.iter().find_map(|(name, value)| match value {
                Some(Value::Data(DataAttribute::Value(octets))) if name == "immediate" => {
                    octets.as_slice().try_into().ok().map(u16::from_ne_bytes)
                }
                _ => None,
            })
        };
        of_chain.filter_map(|rule| Some((rule.addresses("cmp").next()?, number(&rule)?))).collect()
    }

    /// Returns the link names in a chain's rules of the form `iifname NAME accept`.
    pub(crate) fn accepted_links(&self, chain: &str) -> Vec<String> {
        let of_chain = self.rules.iter().map(|rule| Shape::of(rule)).filter(|rule| rule.chain == chain);
        let link = |rule: Shape| match rule.expressions.as_slice() {
            [(load, _), (compare, Some(Value::Data(DataAttribute::Value(name)))), (verdict, _)]
                if (load.as_str(), compare.as_str(), verdict.as_str()) == ("meta", "cmp", "immediate")
                    && name.len() == IFNAMSIZ =>
            {
                let name = name.split(|octet| *octet == 0).next()?;
                String::from_utf8(name.to_vec()).ok()
            }
            _ => None,
        };
        of_chain.filter_map(link).collect()
    }

    /// Returns, for each rule of a chain, its address and the address that replaces it, if any.
    pub(crate) fn replaced(&self, chain: &str) -> Vec<(IpAddr, Option<IpAddr>)> {
        let of_chain = self.rules.iter().map(|rule| Shape::of(rule)).filter(|rule| rule.chain == chain);
        of_chain
            .filter_map(|rule| Some((rule.addresses("cmp").next()?, rule.addresses("immediate").next())))
            .collect()
    }
}

/// Returns the hook of a chain.
fn hook(chain: &[ChainAttribute]) -> Option<&[Hook]> {
    chain.iter().find_map(|attribute| match attribute {
        ChainAttribute::Hook(parts) => Some(parts.as_slice()),
        _ => None,
    })
}
