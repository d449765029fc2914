//! The effect of a rule on every packet, by its statements.

use netlink_packet_netfilter::nftables::{
    DataAttribute, ExpressionAttribute, Expressions, Immediate, ListAttribute, Verdict, VerdictAttribute,
};
use rtnetlink::packet_core::{DefaultNla, Nla};

use super::batch::Statement;

/// Whether a rule drops or rejects every packet, without a condition.
pub(super) fn drops_all(statements: &[Statement]) -> bool {
    let mut drops = false;
    for statement in statements {
        let ListAttribute::Element(attributes) = statement else { return false };
        let name = attributes.iter().find_map(|attribute| match attribute {
            ExpressionAttribute::Name(name) => Some(name.as_str()),
            _ => None,
        });
        // Of iptables: the name of a match or target.
        let of_iptables = attributes.iter().find_map(|attribute| match attribute {
            ExpressionAttribute::Data(Expressions::Other { attributes, .. }) => {
                attributes.iter().find_map(text)
            }
            _ => None,
        });
        match (name, of_iptables.as_deref()) {
            (Some("counter" | "log"), _) | (Some("match"), Some("comment")) => {}
            (Some("reject"), _) | (Some("target"), Some("REJECT" | "DROP")) => drops = true,
            (Some("immediate"), _) if attributes.iter().any(is_drop) => drops = true,
            _ => return false,
        }
    }
    drops
}

/// The value of an attribute of type 1, as a name.
fn text(attribute: &DefaultNla) -> Option<String> {
    let mut octets = vec![0; attribute.value_len()];
    attribute.emit_value(&mut octets);
    let name = octets.strip_suffix(&[0])?.to_vec();
    (attribute.kind() == 1).then(|| String::from_utf8(name).ok()).flatten()
}

fn is_drop(attribute: &ExpressionAttribute) -> bool {
    let code = VerdictAttribute::Code(Verdict::Other(NF_DROP));
    let is_data = |part: &Immediate| match part {
        Immediate::Data(DataAttribute::Verdict(verdict)) => verdict.contains(&code),
        _ => false,
    };
    matches!(attribute, ExpressionAttribute::Data(Expressions::Immediate(parts)) if parts.iter().any(is_data))
}

/// The kernel's include/uapi/linux/netfilter.h.
pub(super) const NF_DROP: u32 = 0;
