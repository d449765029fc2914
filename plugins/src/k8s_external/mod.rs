//! `k8s_external`: services of the block's cluster under their external names and addresses.

use std::sync::{Arc, OnceLock};

use crate::kubernetes_zone;
use ::kubernetes::{AnswerOutcome, ClusterHandle, External, ExternalRules};
use corefile::{Directive, Location};
use metrics::counters::ThreadCounters;
use plugin::args::{Args, Result, bad, flag, no_block, once, unknown_property, zones_or};
use plugin::spec::{BuildContext, Explanation, ParseContext, Source, SourceSpec};
use plugin::zone_request::ZoneOutcome;
use plugin::{Fallthrough, HostsGuard, Lookup, QueryContext, Spec};
use wire::{Class, Proto, Query, Reply, ZoneRequest};

/// One `k8s_external` directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalSpec {
    at: Location,
    rules: ExternalRules,
    /// Zones in which missing names pass to the next plugin.
    fallthrough: Fallthrough,
}

/// Reads the one `k8s_external` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    let directive = once(PLUGIN, directives)?;
    let zones = zones_or(Args::new(PLUGIN, directive, "[ZONES...]").rest(), written.zones)?;
    let rules = ExternalRules { zones, apex: "dns".into(), ttl: 5, headless: false };
    let at = directive.name.at.clone();
    let mut spec = ExternalSpec { at, rules, fallthrough: Fallthrough::default() };
    for property in directive.body.iter().flatten() {
        no_block(PLUGIN, property)?;
        let rules = &mut spec.rules;
        match property.name.text.as_str() {
            "ttl" => {
                let mut args = Args::new(PLUGIN, property, TTL);
                rules.ttl = args.number(0..=3600, TTL)?;
                args.end()?;
            }
            "apex" => {
                let mut args = Args::new(PLUGIN, property, APEX);
                let word = args.required()?;
                args.end()?;
                rules.apex = word.text.as_str().into();
                let is_label = !word.text.contains('.') && External::new(rules.clone()).is_some();
                if !is_label {
                    return Err(bad(PLUGIN, word, APEX));
                }
            }
            "headless" => rules.headless = flag(PLUGIN, property)?,
            "fallthrough" => spec.fallthrough.add(PLUGIN, property)?,
            _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
        }
    }
    Ok(Arc::new(spec))
}

/// Returns warnings, with their location, about zones of other sources, such as `kubernetes`, with
/// names that this plugin denies before the other source gets the query.
pub fn odd(spec: &Spec) -> impl Iterator<Item = String> {
    spec.blocks.iter().flat_map(|block| {
        let external = block.get::<ExternalSpec>();
        let others = block.plugins.iter().filter(|(plugin, _)| *plugin != PLUGIN);
        let zones = others.filter_map(|(plugin, role)| Some((plugin, role.source()?.zones())));
        let of_zones = zones.flat_map(|(plugin, zones)| zones.iter().map(move |zone| (plugin, zone)));
        of_zones.filter_map(move |(plugin, zone)| {
            let ExternalSpec { at, rules, fallthrough } = external?;
            let own = rules.zones.iter().find(|own| zone.is_within(own))?;
            (!fallthrough.through(zone)).then(|| {
                format!(
                    "{at}: plugin/{PLUGIN}: it is asked before `{plugin}`, and denies the names of {zone}, which lies in its zone \
                     {own}; give it a zone of its own, or `fallthrough`"
                )
            })
        })
    })
}

impl SourceSpec for ExternalSpec {
    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn Source>> {
        Ok(Box::new(Services {
            external: External::new(self.rules.clone()),
            cluster: context.extensions.get(),
            fallthrough: self.fallthrough.clone(),
        }))
    }
}

/// The external names of a block's cluster.
struct Services {
    /// The responder, built from the directive.
    external: Option<External>,
    /// The cluster of the block's `kubernetes`.
    cluster: Arc<OnceLock<ClusterHandle>>,
    fallthrough: Fallthrough,
}

impl Services {
    fn answer(&self, query: &Query<'_>, room: usize, reply: &mut Reply<'_>) -> AnswerOutcome {
        let (Some(external), Some(cluster)) = (&self.external, self.cluster.get()) else {
            return AnswerOutcome::NotInZones;
        };
        let answered = external.answer(&cluster.responder, &cluster.index, query, room, reply);
        if matches!(answered, AnswerOutcome::NoName(_) | AnswerOutcome::Unsynced(_)) {
            reply.clear();
        }
        match answered {
            AnswerOutcome::NoName(zone) if !self.fallthrough.through(&query.name) => {
                external.deny(&cluster.index, zone, query, reply);
                AnswerOutcome::Written
            }
            answered => answered,
        }
    }
}

impl Source for Services {
    #[inline]
    fn lookup<'h>(
        &'h self,
        context: &QueryContext<'_>,
        _: &mut HostsGuard<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        _: ThreadCounters<'_>,
    ) -> Lookup {
        if query.class != Class::IN {
            return Lookup::Pass;
        }
        let room = context.room(query);
        match self.answer(query, room, reply) {
            AnswerOutcome::NotInZones | AnswerOutcome::NoName(_) => Lookup::Pass,
            AnswerOutcome::Written => Lookup::Answer,
            AnswerOutcome::Follow => Lookup::FollowOrFail,
            AnswerOutcome::Unsynced(kind) => Lookup::Fail(kubernetes_zone::not_known_yet(kind)),
        }
    }

    fn of_zone(
        &self,
        request: &ZoneRequest<'_>,
        context: &QueryContext<'_>,
        _: &mut Reply<'_>,
    ) -> ZoneOutcome {
        let (Some(external), Some(cluster)) = (&self.external, self.cluster.get()) else {
            return ZoneOutcome::Pass;
        };
        if !request.is_transfer() {
            return ZoneOutcome::Pass;
        }
        // Over UDP the reply to a transfer is the SOA alone: the client retries over TCP.
        let soa_alone = context.proto == Proto::Udp;
        let (name, serial) = (&request.query.name, request.serial());
        let transfer = external.transfer(&cluster.responder, &cluster.index, name, serial, soa_alone);
        kubernetes_zone::of_zone(transfer)
    }

    fn explain(&self, query: &Query<'_>) -> Explanation {
        if query.class != Class::IN {
            return Explanation::Passes(None);
        }
        let (Some(external), Some(cluster)) = (&self.external, self.cluster.get()) else {
            return Explanation::Passes(None);
        };
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, query);
        let recalled = cluster.snapshot.load_snapshot();
        let why = external.explain(&cluster.responder, &cluster.index, query) + &recalled.source();
        match self.answer(query, usize::from(u16::MAX), &mut reply) {
            AnswerOutcome::NotInZones => Explanation::Passes(None),
            AnswerOutcome::NoName(_) => Explanation::Passes(Some(why)),
            AnswerOutcome::Written | AnswerOutcome::Follow => Explanation::Ends(match reply.rcode {
                wire::Rcode::NXDOMAIN => format!("NXDOMAIN: {why}"),
                _ => why,
            }),
            AnswerOutcome::Unsynced(kind) => Explanation::Ends(recalled.unsynced(kind)),
        }
    }
}

const PLUGIN: &str = "k8s_external";
const PROPERTIES: &[&str] = &["apex", "fallthrough", "headless", "ttl"];
const TTL: &str = "a TTL in seconds, 0 to 3600";
const APEX: &str = "a label of a name";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused};
    use wire::Name;

    #[test]
    fn hidden_cluster_zones_get_a_warning() {
        let hides = |zone: &str, own: &str| {
            format!(
                "Corefile:3:1: plugin/k8s_external: it is asked before `kubernetes`, and denies the names of {zone}, which lies in \
                 its zone {own}; give it a zone of its own, or `fallthrough`"
            )
        };
        for (external, expected) in [
            ("k8s_external example.org", vec![]),
            ("k8s_external a.cluster.local", vec![]),
            ("k8s_external cluster.local", vec![hides("cluster.local.", "cluster.local.")]),
            ("k8s_external local example.org", vec![hides("cluster.local.", "local.")]),
            ("k8s_external", vec![hides("cluster.local.", "."), hides("in-addr.arpa.", ".")]),
            ("k8s_external {\nfallthrough\n}", vec![]),
            ("k8s_external {\nfallthrough cluster.local\n}", vec![hides("in-addr.arpa.", ".")]),
        ] {
            let corefile = format!(". {{\nkubernetes cluster.local in-addr.arpa\n{external}\n}}\n");
            let spec = crate::read_corefile::tests::spec(&corefile).unwrap();
            assert_eq!(odd(&spec).collect::<Vec<_>>(), expected, "{external}");
        }
    }

    #[test]
    fn properties_change_what_they_name() {
        let name = |text: &str| Name::from_text(text).unwrap();
        let read = |properties: &str| {
            parsed::<ExternalSpec>(&format!(
                "kubernetes cluster.local\nk8s_external example.org in-addr.arpa {{\n{properties}\n}}"
            ))
            .unwrap()
        };
        let bare = read("");
        let zones = vec![name("example.org"), name("in-addr.arpa")];
        assert_eq!(bare.rules, ExternalRules { zones, apex: "dns".into(), ttl: 5, headless: false });
        assert_eq!(read("ttl 3600").rules, ExternalRules { ttl: 3600, ..bare.rules.clone() });
        assert_eq!(read("apex dns1").rules, ExternalRules { apex: "dns1".into(), ..bare.rules.clone() });
        assert_eq!(read("headless").rules, ExternalRules { headless: true, ..bare.rules });
        assert_eq!(read("fallthrough a.example").fallthrough.zones, [name("a.example")]);
        let with = |properties: &str| format!("kubernetes\nk8s_external {{\n{properties}\n}}");
        refused(&[
            (
                "k8s_external",
                "2:1: plugin/k8s_external: `kubernetes` is missing in this server block; add it",
            ),
            (&with("ttl 3601"), "4:5: plugin/k8s_external: \"3601\" is not a TTL in seconds, 0 to 3600"),
            (&with("ttl"), "4:1: plugin/k8s_external: `ttl` needs a TTL in seconds, 0 to 3600"),
            (&with("apex"), "4:1: plugin/k8s_external: `apex` needs a label of a name"),
            (&with("apex a.b"), "4:6: plugin/k8s_external: \"a.b\" is not a label of a name"),
            (
                &with("headless x"),
                "4:10: plugin/k8s_external: unexpected argument \"x\"; `headless` needs no argument",
            ),
            (
                &with("headles"),
                "4:1: plugin/k8s_external: unknown property \"headles\"; did you mean `headless`?",
            ),
        ]);
    }
}
