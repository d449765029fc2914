//! Evaluates the statements of a rule for a query.

use netlink_packet_netfilter::nftables::{
    Bitwise, Cmp, DataAttribute, ExpressionAttribute, Expressions, Immediate, ListAttribute, Lookup, Meta,
    MetaKey, Operator, Payload, Register, SetElementAttribute, SetElementFlags, Verdict as Code,
    VerdictAttribute,
};
use rtnetlink::packet_core::{DefaultNla, Nla};

use super::batch::Statement;
use super::registers::{Holds, Query, Registers, Value};

/// The verdict of a rule or of a map's element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    /// The packet is dropped; also stands for `reject`.
    Drop,
    Return,
    Jump(String),
    Goto(String),
    /// The verdict is left to a program (`queue`), or cannot be decoded.
    Unknown,
}

/// A verdict that a rule has for a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) verdict: Verdict,
    /// Whether all conditions hold; false if that is not known.
    pub(super) is_certain: bool,
    /// Whether the verdict is from an element of a verdict map.
    pub(super) is_of_map: bool,
}

/// An element of a set or map.
#[derive(Debug, Default, Clone)]
pub(super) struct Element {
    key: Vec<u8>,
    flags: SetElementFlags,
    /// The end of a range of a concatenation, included.
    end: Option<Vec<u8>>,
    verdict: Option<Verdict>,
}

impl Element {
    pub(super) fn of(attributes: &[SetElementAttribute]) -> Self {
        let mut element = Self::default();
        for attribute in attributes {
            match attribute {
                SetElementAttribute::Key(DataAttribute::Value(key)) => element.key.clone_from(key),
                SetElementAttribute::Flags(flags) => element.flags = *flags,
                SetElementAttribute::KeyEnd(data) => {
                    let value = data.iter().find(|part| part.kind() == NFTA_DATA_VALUE);
                    element.end = Some(value.map(octets).unwrap_or_default());
                }
                SetElementAttribute::Data(DataAttribute::Verdict(verdict)) => {
                    element.verdict = Some(verdict_of(verdict));
                }
                _ => {}
            }
        }
        element
    }
}

/// Returns the effects of a rule on a query; none if the rule does not match or only counts.
/// `elements` returns the elements of a set, `None` if they cannot be read.
pub(super) fn effects(
    statements: &[Statement],
    query: &Query<'_>,
    elements: &mut dyn FnMut(&str) -> Option<Vec<Element>>,
) -> Vec<Effect> {
    let (mut registers, mut is_certain) = (Registers::default(), true);
    for statement in statements {
        let ListAttribute::Element(attributes) = statement else { continue };
        let name = attributes.iter().find_map(|attribute| match attribute {
            ExpressionAttribute::Name(name) => Some(name.as_str()),
            _ => None,
        });
        let data = attributes.iter().find_map(|attribute| match attribute {
            ExpressionAttribute::Data(data) => Some(data),
            _ => None,
        });
        let one = |verdict, is_certain| vec![Effect { verdict, is_certain, is_of_map: false }];
        let holds = match (name.unwrap_or_default(), data) {
            (_, Some(Expressions::Meta(parts))) => {
                load_meta(parts, query, &mut registers);
                Holds::Yes
            }
            (_, Some(Expressions::Payload(parts))) => {
                load_payload(parts, query, &mut registers);
                Holds::Yes
            }
            (_, Some(Expressions::Bitwise(parts))) => {
                mask(parts, &mut registers);
                Holds::Yes
            }
            (_, Some(Expressions::Cmp(parts))) => compare(parts, query, &registers),
            (_, Some(Expressions::Immediate(parts))) => match immediate(parts, &mut registers) {
                Some(verdict) => return one(verdict, is_certain),
                None => Holds::Yes,
            },
            (_, Some(Expressions::Lookup(parts))) => {
                let lookup = LookUp::of(parts);
                let found = elements(&lookup.set);
                if lookup.is_map {
                    let of_map = lookup.verdicts(found, query, &registers);
                    let of_map = of_map.into_iter();
                    return of_map
                        .map(|(verdict, holds)| Effect {
                            verdict,
                            is_certain: is_certain && holds == Holds::Yes,
                            is_of_map: true,
                        })
                        .collect();
                }
                lookup.contains(found, query, &registers)
            }
            ("ct", Some(Expressions::Other { attributes, .. })) => {
                if let Some(register) = number(attributes, CT_DREG) {
                    let is_state = number(attributes, CT_KEY) == Some(CT_STATE);
                    registers.load(register, is_state.then(|| query.ct_state()));
                }
                Holds::Yes
            }
            ("reject", _) => return one(Verdict::Drop, is_certain),
            ("queue", _) => return one(Verdict::Unknown, is_certain),
            ("counter" | "log" | "last" | "notrack" | "objref", _) => Holds::Yes,
            ("byteorder" | "fib" | "socket" | "rt" | "numgen" | "hash" | "tunnel" | "xfrm", _) => {
                registers.forget();
                Holds::Yes
            }
            // Matches and targets of iptables.
            (kind @ ("match" | "target"), Some(Expressions::Other { attributes, .. })) => {
                match (kind, attributes.iter().find_map(text).as_deref()) {
                    ("match", Some("comment")) => Holds::Yes,
                    ("match", _) => Holds::Perhaps,
                    (_, Some("DROP" | "REJECT")) => return one(Verdict::Drop, is_certain),
                    (_, Some("NFQUEUE")) => return one(Verdict::Unknown, is_certain),
                    _ => Holds::Yes,
                }
            }
            _ => Holds::Perhaps,
        };
        match holds {
            Holds::Yes => {}
            Holds::No => return Vec::new(),
            Holds::Perhaps => is_certain = false,
        }
    }
    Vec::new()
}

fn load_meta(parts: &[Meta], query: &Query<'_>, registers: &mut Registers) {
    let (mut key, mut register) = (None, None);
    for part in parts {
        match part {
            Meta::Key(of) => key = Some(*of),
            Meta::DestinationRegister(to) => register = Some(u32::from(*to)),
            _ => {}
        }
    }
    if let Some(register) = register {
        registers.load(register, key.and_then(|key: MetaKey| query.meta(key)));
    }
}

fn load_payload(parts: &[Payload], query: &Query<'_>, registers: &mut Registers) {
    let (mut base, mut offset, mut length, mut register) = (0, 0, 0, None);
    for part in parts {
        match part {
            Payload::Base(of) => base = *of,
            Payload::Offset(of) => offset = *of,
            Payload::Len(of) => length = *of,
            Payload::DestinationRegister(to) => register = Some(u32::from(*to)),
            _ => {}
        }
    }
    if let Some(register) = register {
        // An unknown value overwrites as many registers as a known one of its length.
        let value = query.header(base, offset, length);
        if value.is_none() {
            registers.load(register, Some(Value::Known(vec![0; length.min(LONGEST) as usize])));
        }
        registers.load(register, value);
    }
}

fn mask(parts: &[Bitwise], registers: &mut Registers) {
    let (mut from, mut to, mut masks, mut xors) = (0, 0, None, None);
    let value = |data: &DataAttribute| match data {
        DataAttribute::Value(octets) => Some(octets.clone()),
        _ => None,
    };
    for part in parts {
        match part {
            Bitwise::SourceRegister(of) => from = u32::from(*of),
            Bitwise::DestinationRegister(of) => to = u32::from(*of),
            Bitwise::Mask(data) => masks = value(data),
            Bitwise::Xor(data) => xors = value(data),
            _ => {}
        }
    }
    let masked = match (registers.value(from), masks, xors) {
        (Some(Value::Known(octets)), Some(masks), Some(xors)) => {
            let octets = octets.iter().zip(masks).zip(xors).map(|((octet, mask), xor)| octet & mask ^ xor);
            Some(Value::Known(octets.collect()))
        }
        _ => None,
    };
    registers.load(to, masked);
}

fn compare(parts: &[Cmp], query: &Query<'_>, registers: &Registers) -> Holds {
    let (mut register, mut operator, mut with) = (0, Operator::Equal, None);
    for part in parts {
        match part {
            Cmp::SourceRegister(of) => register = u32::from(*of),
            Cmp::Op(of) => operator = *of,
            Cmp::Data(DataAttribute::Value(octets)) => with = Some(octets),
            _ => {}
        }
    }
    with.map_or(Holds::Perhaps, |with| registers.compares(register, operator, with, query))
}

/// Returns the verdict; if the expression loads a value, stores the value and returns `None`.
fn immediate(parts: &[Immediate], registers: &mut Registers) -> Option<Verdict> {
    let (mut register, mut data) = (0, None);
    for part in parts {
        match part {
            Immediate::DestinationRegister(of) => register = u32::from(*of),
            Immediate::Data(of) => data = Some(of),
            _ => {}
        }
    }
    match data {
        Some(DataAttribute::Verdict(verdict)) => return Some(verdict_of(verdict)),
        Some(DataAttribute::Value(octets)) => registers.load(register, Some(Value::Known(octets.clone()))),
        _ => registers.forget(),
    }
    None
}

fn verdict_of(attributes: &[VerdictAttribute]) -> Verdict {
    let code = attributes.iter().find_map(|attribute| match attribute {
        VerdictAttribute::Code(code) => Some(*code),
        _ => None,
    });
    let chain = attributes.iter().find_map(|attribute| match attribute {
        VerdictAttribute::Chain(name) => Some(name.clone()),
        _ => None,
    });
    match (code, chain) {
        (Some(Code::Other(NF_DROP)), _) => Verdict::Drop,
        (Some(Code::Other(NF_ACCEPT)), _) => Verdict::Accept,
        (Some(Code::Return), _) => Verdict::Return,
        (Some(Code::Jump), Some(chain)) => Verdict::Jump(chain),
        (Some(Code::Goto), Some(chain)) => Verdict::Goto(chain),
        _ => Verdict::Unknown,
    }
}

/// A lookup in a set or a verdict map.
struct LookUp {
    set: String,
    register: u32,
    is_map: bool,
    is_inverted: bool,
}

impl LookUp {
    fn of(parts: &[Lookup]) -> Self {
        let mut lookup = Self { set: String::new(), register: 0, is_map: false, is_inverted: false };
        for part in parts {
            match part {
                Lookup::Set(name) => lookup.set.clone_from(name),
                Lookup::SourceRegister(of) => lookup.register = u32::from(*of),
                Lookup::DestinationRegister(to) => lookup.is_map = *to == Register::Verdict,
                Lookup::Flags(flags) => lookup.is_inverted = flags & 1 != 0,
                _ => {}
            }
        }
        lookup
    }

    /// Returns the element that matches or, if none is known to match, all elements that may match.
    fn matching(&self, all: Vec<Element>, query: &Query<'_>, registers: &Registers) -> Vec<(Element, Holds)> {
        let (rest, mut keyed): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|element| element.flags.contains(SetElementFlags::CatchAll));
        let is_end = |element: &Element| element.flags.contains(SetElementFlags::IntervalEnd);
        let mut found: Vec<(Element, Holds)> = if keyed.iter().any(|element| element.end.is_some()) {
            let holds = |element: Element| {
                let end = element.end.as_ref().unwrap_or(&element.key);
                let holds = registers.within(self.register, &element.key, end, query);
                (element, holds)
            };
            keyed.into_iter().map(holds).filter(|(_, holds)| *holds != Holds::No).collect()
        } else if keyed.iter().any(is_end) {
            keyed.sort_by(|one, other| one.key.cmp(&other.key).then(is_end(other).cmp(&is_end(one))));
            let length = keyed.iter().map(|element| element.key.len()).max().unwrap_or_default();
            match registers.known(self.register, length) {
                // The last boundary at or before the value, if it begins an interval.
                Some(value) => {
                    let last = keyed.into_iter().take_while(|element| element.key <= value).last();
                    last.filter(|element| !is_end(element))
                        .map(|element| (element, Holds::Yes))
                        .into_iter()
                        .collect()
                }
                None => keyed
                    .into_iter()
                    .filter(|element| !is_end(element))
                    .map(|one| (one, Holds::Perhaps))
                    .collect(),
            }
        } else {
            let holds = |element: Element| {
                let holds = registers.equal(self.register, &element.key, query);
                (element, holds)
            };
            keyed.into_iter().map(holds).filter(|(_, holds)| *holds != Holds::No).collect()
        };
        if let Some(at) = found.iter().position(|(_, holds)| *holds == Holds::Yes) {
            return vec![found.swap_remove(at)];
        }
        let of_rest = if found.is_empty() { Holds::Yes } else { Holds::Perhaps };
        found.extend(rest.into_iter().map(|element| (element, of_rest)));
        found
    }

    fn contains(&self, all: Option<Vec<Element>>, query: &Query<'_>, registers: &Registers) -> Holds {
        let Some(all) = all else { return Holds::Perhaps };
        let holds = match self.matching(all, query, registers).as_slice() {
            [] => Holds::No,
            [(_, Holds::Yes)] => Holds::Yes,
            _ => Holds::Perhaps,
        };
        if self.is_inverted { holds.not() } else { holds }
    }

    fn verdicts(
        &self,
        all: Option<Vec<Element>>,
        query: &Query<'_>,
        registers: &Registers,
    ) -> Vec<(Verdict, Holds)> {
        let Some(all) = all else { return vec![(Verdict::Unknown, Holds::Perhaps)] };
        let matching = self.matching(all, query, registers).into_iter();
        matching.map(|(element, holds)| (element.verdict.unwrap_or(Verdict::Unknown), holds)).collect()
    }
}

/// Returns the value of an attribute of type 1, as a name.
fn text(attribute: &DefaultNla) -> Option<String> {
    let name = octets(attribute).strip_suffix(&[0])?.to_vec();
    (attribute.kind() == 1).then(|| String::from_utf8(name).ok()).flatten()
}

/// Returns the value of the attribute of this type, as a number.
fn number(attributes: &[DefaultNla], kind: u16) -> Option<u32> {
    let attribute = attributes.iter().find(|attribute| attribute.kind() == kind)?;
    octets(attribute).first_chunk().map(|octets| u32::from_be_bytes(*octets))
}

fn octets(attribute: &DefaultNla) -> Vec<u8> {
    let mut octets = vec![0; attribute.value_len()];
    attribute.emit_value(&mut octets);
    octets
}

/// Maximum length of a value in bytes: all registers together have 80.
const LONGEST: u32 = 80;
// Constants of the kernel's include/uapi/linux/netfilter.h and nf_tables.h.
pub(super) const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const NFTA_DATA_VALUE: u16 = 1;
const CT_DREG: u16 = 1;
const CT_KEY: u16 = 2;
const CT_STATE: u32 = 0;
