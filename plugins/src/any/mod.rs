//! `any`: answers ANY with one HINFO record (RFC 8482).

use std::net::IpAddr;
use std::sync::Arc;

use corefile::Directive;
use wire::{Message, RType, Rcode, Rr, Section};

use plugin::QueryContext;
use plugin::args::{Result, bare};
use plugin::middleware::{EffectiveQuery, Middleware, OnQuery};
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec, ParseContext};

/// The middleware; it has no settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Any;

/// Reads the one `any` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn MiddlewareSpec>> {
    bare("any", directives)?;
    Ok(Arc::new(Any))
}

impl MiddlewareSpec for Any {
    fn build(&self, _: &BuildContext<'_>) -> Result<Arc<dyn Middleware>> {
        Ok(Arc::new(Self))
    }

    fn keeps_names(&self) -> bool {
        true
    }
}

impl Middleware for Any {
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, _: &QueryContext<'_>) -> OnQuery<'s> {
        if effective.rtype() != RType::ANY {
            return OnQuery::Pass;
        }
        let mut response = Message::empty(&effective.query(), Rcode::NOERROR);
        response.records.push(Rr::new(Section::Answer, effective.name(), RType::HINFO, TTL, HINFO));
        OnQuery::Answer(Box::new(response))
    }

    fn explain(&self, effective: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        match effective.rtype() {
            RType::ANY => Explanation::Ends("ANY is answered with HINFO (RFC 8482)".to_owned()),
            _ => Explanation::Passes(None),
        }
    }
}

/// CPU and OS, as character strings (RFC 1035, section 3.3.2).
const HINFO: &[u8] = b"\x0dANY obsoleted\x0cSee RFC 8482";
/// In seconds, as in CoreDNS.
const TTL: u32 = 8482;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Others, a, packet, through};

    #[test]
    fn only_any_is_answered() {
        for (rtype, response) in [(RType::ANY, RType::HINFO), (RType::A, RType::A), (RType::HINFO, RType::A)]
        {
            let records = vec![a("www.example.org", 5, [192, 0, 2, 1])];
            let below = Message { records, ..Message::default() };
            let asked = packet("www.example.org", rtype);
            let (_, message) = through(&Any, "192.0.2.9", &asked, |_| below, &mut Others::default());
            let types: Vec<_> = message.unwrap().records.iter().map(|rr| rr.rtype).collect();
            assert_eq!(types, [response], "{rtype}");
        }
    }
}
