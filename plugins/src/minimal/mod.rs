//! `minimal`: removes the authority and additional sections of positive answers.

use std::net::IpAddr;
use std::sync::Arc;

use corefile::Directive;
use wire::{Message, RType, Rcode, Section};

use plugin::QueryContext;
use plugin::args::{Result, bare};
use plugin::middleware::{EffectiveQuery, HookResult, Middleware, OnQuery, ResponseHook, Subqueries};
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec, ParseContext};

/// The middleware; it has no settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Minimal;

/// Reads the one `minimal` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn MiddlewareSpec>> {
    bare("minimal", directives)?;
    Ok(Arc::new(Minimal))
}

impl MiddlewareSpec for Minimal {
    fn build(&self, _: &BuildContext<'_>) -> Result<Arc<dyn Middleware>> {
        Ok(Arc::new(Self))
    }

    fn keeps_names(&self) -> bool {
        true
    }
}

impl Middleware for Minimal {
    fn on_query<'s>(&'s self, _: &mut EffectiveQuery<'_>, _: &QueryContext<'_>) -> OnQuery<'s> {
        OnQuery::Hook(Box::new(Self))
    }

    fn explain(&self, _: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        Explanation::Passes(Some("positive answers lose their authority and additional section".to_owned()))
    }
}

impl ResponseHook for Minimal {
    fn on_response(
        &self,
        _: &EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        response: &mut Message,
        _: &mut dyn Subqueries,
    ) -> HookResult {
        if is_positive(response) {
            response.records.retain(|rr| rr.section == Section::Answer);
        }
        HookResult::Done
    }
}

/// Whether the response is neither a denial, nor a failure, nor a referral (RFC 1034, section
/// 4.3.1; RFC 2308, section 2).
fn is_positive(response: &Message) -> bool {
    if response.rcode != Rcode::NOERROR {
        return false;
    }
    let authority = |rtype| response.section(Section::Authority).any(|rr| rr.rtype == rtype);
    response.section(Section::Answer).next().is_some() || !(authority(RType::SOA) || authority(RType::NS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Others, a, packet, through};
    use wire::{Name, Rr};

    #[test]
    fn only_positive_answers_are_shortened() {
        let at = |section, rtype| Rr { section, rtype, ..a("ns.example.org", 5, [192, 0, 2, 53]) };
        let answer = a("www.example.org", 5, [192, 0, 2, 1]);
        let ns = at(Section::Authority, RType::NS);
        let soa = Rr::new(Section::Authority, &Name::ROOT, RType::SOA, 5, &[0; 22]);
        let glue = at(Section::Additional, RType::A);
        for (what, rcode, records, left) in [
            ("an answer", Rcode::NOERROR, vec![answer.clone(), ns.clone(), glue.clone()], 1),
            ("whoami's", Rcode::NOERROR, vec![glue.clone()], 0),
            ("a referral", Rcode::NOERROR, vec![ns, glue.clone()], 2),
            ("no data", Rcode::NOERROR, vec![soa.clone(), glue.clone()], 2),
            ("an alias of no name", Rcode::NXDOMAIN, vec![answer, soa], 2),
            ("a failure", Rcode::SERVFAIL, vec![glue], 1),
        ] {
            let response = Message { rcode, records, ..Message::default() };
            let asked = packet("www.example.org", RType::A);
            let (effective, response) =
                through(&Minimal, "192.0.2.9", &asked, |_| response, &mut Others::default());
            assert_eq!(effective, "www.example.org. A");
            assert_eq!(response.unwrap().records.len(), left, "{what}");
        }
    }
}
