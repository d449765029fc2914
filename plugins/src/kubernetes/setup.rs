//! Parsing of `kubernetes`.

use std::sync::Arc;
use std::time::Duration;

use ::kubernetes::{Pods, Rules};
use corefile::{Directive, Located, Word};
use files::ShownPath;
use kubernetes_api::{
    Access, ClientFiles, PodWatch, RateLimit, SERVICE_ACCOUNT, Selector, ShownText, WatchConfig,
};

use plugin::args::{Args, Result, bad, duration, flag, no_block, once, path, unknown_property, zones_or};
use plugin::metadata::named_behind;
use plugin::spec::{ParseContext, SourceSpec};
use plugin::{BlockSpec, Fallthrough, SetupError, Spec};

use super::metadata_provider::{CLIENT, CLIENT_LABEL};
use super::snapshot::SnapshotSpec;

const PLUGIN: &str = "kubernetes";
const PROPERTIES: &[&str] = &[
    "apiserver_burst",
    "apiserver_max_inflight",
    "apiserver_qps",
    "endpoint",
    "endpoint_pod_names",
    "fallthrough",
    "ignore",
    "kubeconfig",
    "labels",
    "multicluster",
    "namespace_labels",
    "namespaces",
    "node",
    "noendpoints",
    "pods",
    "snapshot",
    "startup_timeout",
    "tls",
    "ttl",
    "zonal",
];

/// One `kubernetes` directive.
#[derive(Debug, Clone, PartialEq)]
pub struct KubernetesSpec {
    /// The API's address, and the credentials for it.
    pub access: Access,
    /// The objects to watch.
    pub wants: WatchConfig,
    /// Rules for answers; the server's own addresses are added when the source is built.
    pub rules: Rules,
    /// Zones in which missing names pass to the next plugin.
    pub fallthrough: Fallthrough,
    /// Maximum time that a start waits until all kinds are synced; default 5 s.
    pub startup_timeout: Duration,
    /// Number of further APIs in `endpoint` that are not used.
    pub passed_over: usize,
    /// Rate limit of API requests; default none.
    pub pace: RateLimit,
    /// The node of the pods that are watched; default all nodes.
    pub node: Option<Box<str>>,
    /// Whether `autopath` uses the search paths of pods.
    pub is_searched: bool,
    /// The snapshot of the index, kept across restarts; default none.
    pub snapshot: Option<SnapshotSpec>,
}

/// The words of properties that exclude each other.
#[derive(Default)]
struct Places<'d> {
    endpoint: Option<&'d Word>,
    passed_over: usize,
    tls: Option<ClientFiles>,
    kubeconfig: Option<Access>,
    namespaces: Option<&'d Word>,
    namespace_labels: Option<&'d Word>,
    noendpoints: Option<&'d Word>,
    node: Option<&'d Word>,
    verified: Option<&'d Word>,
    zonal: Option<&'d Word>,
    /// The property `multicluster` with its zones.
    multicluster: Option<&'d Directive>,
}

/// Reads the one `kubernetes` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    let directive = once(PLUGIN, directives)?;
    let zones = zones_or(Args::new(PLUGIN, directive, "[ZONES...]").rest(), written.zones)?;
    if zones.iter().all(wire::reverse::is_reverse) {
        let rule = "one zone at least has to be for names, such as cluster.local: addresses lead back to it";
        return Err(Located::new(&directive.name.at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    hides_none(directive, &zones)?;
    let mut spec = KubernetesSpec::bare(zones);
    let mut places = Places::default();
    for property in directive.body.iter().flatten() {
        no_block(PLUGIN, property)?;
        read_property(property, written.root(), &mut spec, &mut places)?;
    }
    // As in client-go, regardless of the order of the properties.
    if spec.pace.per_second > 0.0 && spec.pace.burst == 0 {
        spec.pace.burst = BURST;
    }
    // Pods are watched only if needed: for verified names, search paths, or rules that use labels
    // of the client's pod.
    let is_searched = written.is_searched(PLUGIN);
    places.check(&mut spec)?;
    let readers = written.readers_of_labels();
    let is_asked_for = is_searched || !named_behind(CLIENT, readers).is_empty();
    if spec.rules.pods == Pods::Verified || (is_asked_for && spec.node.is_some()) {
        let labels = named_behind(CLIENT_LABEL, readers);
        spec.wants.pods = Some(PodWatch { node: spec.node.clone(), labels });
    }
    spec.is_searched = is_searched;
    Ok(Arc::new(spec))
}

/// Refuses the same snapshot file for two clusters.
///
/// # Errors
/// Two blocks name the same file; the error is located at the second.
pub fn keep_snapshots_apart(spec: &Spec) -> Result<()> {
    let mut kept: Vec<&KubernetesSpec> = Vec::new();
    for block in &spec.blocks {
        let Some(cluster) = block.get::<KubernetesSpec>().filter(|cluster| cluster.snapshot.is_some()) else {
            continue;
        };
        if kept.iter().any(|other| cluster.is_in_the_way_of(other)) {
            let rule = "another block keeps something else, or at other times, in the file that `snapshot` names; name two files";
            return Err(Located::new(&block.at, SetupError::Order { plugin: PLUGIN, rule }));
        }
        kept.push(cluster);
    }
    Ok(())
}

/// Returns the warnings about `kubernetes` directives, with their location.
pub fn odd(spec: &Spec) -> impl Iterator<Item = String> {
    let of_block = |block: &BlockSpec| {
        let passed_over = block.get::<KubernetesSpec>()?.passed_over;
        (passed_over > 0)
            .then(|| format!("{}: of several APIs behind `endpoint` the first alone is asked", block.at))
    };
    spec.blocks.iter().filter_map(of_block)
}

/// Returns why the APIs of this Corefile cannot be watched, as a server would log it; sends no
/// packet.
pub fn unreachable(spec: &Spec) -> impl Iterator<Item = String> {
    let all = spec.blocks.iter().filter_map(|block| block.get::<KubernetesSpec>());
    all.filter_map(|cluster| {
        let why = cluster.access.check().err()?;
        Some(format!("plugin/kubernetes: {why}; {}", why.remedy()))
    })
}

/// Refuses a zone below the names of services or pods of another zone, which it would hide.
fn hides_none(directive: &Directive, zones: &[wire::Name]) -> Result<()> {
    for zone in zones {
        let is_hidden = |other: &&wire::Name| {
            let above = zone.label_count().checked_sub(other.label_count() + 1);
            let first = above.and_then(|above| zone.labels().nth(above));
            zone.is_within(other) && matches!(first, Some(b"svc" | b"pod"))
        };
        if let Some(other) = zones.iter().find(is_hidden) {
            // A network stands for several reverse zones, which have no names of services.
            let word =
                directive.args.iter().find(|word| wire::Name::from_text(&word.text).as_ref() == Ok(zone));
            let at = word.map_or(&directive.name.at, |word| &word.at);
            let (zone, other) = (zone.to_string(), other.to_string());
            return Err(Located::new(at, SetupError::HiddenNames { plugin: PLUGIN, zone, other }));
        }
    }
    Ok(())
}

impl KubernetesSpec {
    /// Whether both directives use the same snapshot file for different objects and would overwrite
    /// each other's snapshot.
    fn is_in_the_way_of(&self, other: &Self) -> bool {
        let file = |spec: &Self| spec.snapshot.as_ref().map(|snapshot| snapshot.file.to_path_buf());
        let followed = |spec: &Self| (spec.access.clone(), spec.wants.clone(), spec.snapshot.clone());
        file(self).is_some() && file(self) == file(other) && followed(self) != followed(other)
    }

    /// Returns the spec of the directive without properties.
    fn bare(zones: Vec<wire::Name>) -> Self {
        Self {
            access: Access::InCluster(SERVICE_ACCOUNT.into()),
            wants: WatchConfig { endpoints: true, ..WatchConfig::default() },
            rules: Rules::of(zones),
            fallthrough: Fallthrough::default(),
            startup_timeout: Duration::from_secs(5),
            passed_over: 0,
            pace: RateLimit::default(),
            node: None,
            is_searched: false,
            snapshot: None,
        }
    }
}

fn read_property<'d>(
    property: &'d Directive,
    root: Option<&ShownPath>,
    spec: &mut KubernetesSpec,
    places: &mut Places<'d>,
) -> Result<()> {
    match property.name.text.as_str() {
        "fallthrough" => spec.fallthrough.add(PLUGIN, property)?,
        "pods" => read_pods(property, spec, places)?,
        "node" => read_node(property, spec, places)?,
        "endpoint_pod_names" => spec.wants.pod_names = flag(PLUGIN, property)?,
        "noendpoints" => {
            spec.wants.endpoints = !flag(PLUGIN, property)?;
            places.noendpoints = Some(&property.name);
        }
        "zonal" => {
            spec.rules.zonal = flag(PLUGIN, property)?;
            spec.wants.zones = true;
            places.zonal = Some(&property.name);
        }
        "ignore" => {
            let mut args = Args::new(PLUGIN, property, "empty_service");
            let word = args.required()?;
            if word.text != "empty_service" {
                return Err(bad(PLUGIN, word, "empty_service"));
            }
            args.end()?;
            spec.rules.ignore_empty = true;
        }
        "ttl" => {
            let mut args = Args::new(PLUGIN, property, TTL);
            spec.rules.ttl = args.number(0..=3600, TTL)?;
            args.end()?;
        }
        "snapshot" => spec.snapshot = Some(read_snapshot(property, root)?),
        "startup_timeout" => {
            let mut args = Args::new(PLUGIN, property, "a duration such as 5s, 0 not to wait");
            spec.startup_timeout = args.duration("a duration such as 5s, 0 not to wait")?;
            args.end()?;
        }
        "namespaces" => {
            let words = Args::new(PLUGIN, property, "at least one namespace").some()?;
            spec.rules.namespaces.extend(words.iter().map(|word| word.text.as_str().into()));
            places.namespaces = Some(&property.name);
        }
        "labels" => spec.wants.labels = Some(selector(property)?),
        "namespace_labels" => {
            spec.wants.namespace_labels = Some(selector(property)?);
            places.namespace_labels = Some(&property.name);
        }
        "multicluster" => places.multicluster = Some(property),
        "apiserver_qps" | "apiserver_burst" | "apiserver_max_inflight" => {
            read_pace(property, &mut spec.pace)?
        }
        "endpoint" | "tls" | "kubeconfig" => read_access(property, root, places)?,
        _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
    }
    Ok(())
}

fn read_pods<'d>(property: &'d Directive, spec: &mut KubernetesSpec, places: &mut Places<'d>) -> Result<()> {
    const MODES: &str = "disabled, insecure or verified";
    let mut args = Args::new(PLUGIN, property, MODES);
    let word = args.required()?;
    spec.rules.pods = match word.text.as_str() {
        "disabled" => Pods::Disabled,
        "insecure" => Pods::Insecure,
        "verified" => Pods::Verified,
        _ => return Err(bad(PLUGIN, word, MODES)),
    };
    places.verified = (spec.rules.pods == Pods::Verified).then_some(&property.name);
    args.end()
}

fn read_node<'d>(property: &'d Directive, spec: &mut KubernetesSpec, places: &mut Places<'d>) -> Result<()> {
    const NODE: &str = "the name of a node, such as {$NODE_NAME} has it";
    let mut args = Args::new(PLUGIN, property, NODE);
    let word = args.required()?;
    args.end()?;
    // The API's label syntax (RFC 1123): other characters would change the selection.
    let is_name = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || b"-.".contains(&octet);
    if !(1..=253).contains(&word.text.len()) || !word.text.bytes().all(is_name) {
        return Err(bad(PLUGIN, word, NODE));
    }
    spec.node = Some(word.text.as_str().into());
    places.node = Some(&property.name);
    Ok(())
}

fn read_snapshot(property: &Directive, root: Option<&ShownPath>) -> Result<SnapshotSpec> {
    const INTERVAL: &str = "a duration of 1s or more";
    let mut args = Args::new(PLUGIN, property, "FILE [INTERVAL]");
    let file = path(root, args.required()?);
    let every = match args.optional() {
        None => WRITTEN_EVERY,
        Some(word) => {
            let every = duration(PLUGIN, word, INTERVAL)?;
            if every < Duration::from_secs(1) {
                return Err(bad(PLUGIN, word, INTERVAL));
            }
            every
        }
    };
    args.end()?;
    Ok(SnapshotSpec { file, every })
}

fn read_access<'d>(property: &'d Directive, root: Option<&ShownPath>, places: &mut Places<'d>) -> Result<()> {
    match property.name.text.as_str() {
        "endpoint" => {
            let words = Args::new(PLUGIN, property, "the URL of the API").some()?;
            // As in CoreDNS, several may be given, and only the first is used.
            places.endpoint = words.first();
            places.passed_over = words.len().saturating_sub(1);
        }
        "tls" => {
            let mut args = Args::new(PLUGIN, property, "CERT KEY CACERT, three files");
            let [certificate, key, authority] = [args.required()?, args.required()?, args.required()?];
            args.end()?;
            let file = |word: &Word| path(root, word);
            places.tls = Some(ClientFiles {
                certificate: file(certificate),
                key: file(key),
                authority: file(authority),
            });
        }
        _ => {
            let mut args = Args::new(PLUGIN, property, "KUBECONFIG [CONTEXT]");
            let file = path(root, args.required()?);
            let context = args.optional().map(|word| ShownText::new(&word.text, word.shown()));
            args.end()?;
            places.kubeconfig = Some(Access::Kubeconfig { file, context });
        }
    }
    Ok(())
}

fn read_pace(property: &Directive, pace: &mut RateLimit) -> Result<()> {
    const LIMIT: &str = "a number of 0 or more";
    let mut args = Args::new(PLUGIN, property, LIMIT);
    match property.name.text.as_str() {
        "apiserver_qps" => pace.per_second = args.number(0.0..=f64::from(f32::MAX), LIMIT)?,
        "apiserver_burst" => {
            pace.burst = u32::try_from(args.number(0..=i64::MAX, LIMIT)?).unwrap_or(u32::MAX)
        }
        _ => pace.in_flight = usize::try_from(args.number(0..=i64::MAX, LIMIT)?).unwrap_or(usize::MAX),
    }
    args.end()
}

fn selector(property: &Directive) -> Result<Selector> {
    let words = Args::new(PLUGIN, property, "a label selector such as app=web,tier!=test").some()?;
    let text = words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
    let at = words.first().map_or(&property.name.at, |word| &word.at);
    Selector::parse(&text)
        .map_err(|error| Located::new(at, SetupError::Selector { plugin: PLUGIN, error: error.to_string() }))
}

impl Places<'_> {
    /// Checks rules that involve several properties.
    fn check(self, spec: &mut KubernetesSpec) -> Result<()> {
        let exclusive =
            |first: Option<&Word>, second: Option<&Word>, names: [&'static str; 2]| match (first, second) {
                (Some(_), Some(word)) => {
                    let [first, second] = names;
                    Err(Located::new(&word.at, SetupError::Exclusive { plugin: PLUGIN, first, second }))
                }
                _ => Ok(()),
            };
        exclusive(self.namespaces, self.namespace_labels, ["namespaces", "namespace_labels"])?;
        exclusive(self.noendpoints, self.zonal, ["noendpoints", "zonal"])?;
        // With `node` only this node's pods are watched: pods of other nodes could not be verified.
        exclusive(self.node, self.verified, ["node", "pods verified"])?;
        if let Some(property) = self.multicluster {
            spec.rules.multicluster = zones_or(&property.args, &[])?;
            spec.wants.imports = !spec.rules.multicluster.is_empty();
            if let Some(zone) = spec.rules.multicluster.iter().find(|zone| !spec.rules.zones.contains(zone)) {
                let error = SetupError::ForeignZone { plugin: PLUGIN, zone: zone.to_string() };
                return Err(Located::new(&property.name.at, error));
            }
        }
        spec.wants.namespaces = spec.rules.namespaces.iter().cloned().collect();
        spec.wants.namespaces.sort();
        if let Some(access) = self.kubeconfig {
            spec.access = access;
        } else if let Some(word) = self.endpoint {
            spec.passed_over = self.passed_over;
            spec.access = Access::Endpoint { url: ShownText::new(&word.text, word.shown()), tls: self.tls };
        }
        Ok(())
    }
}

const WRITTEN_EVERY: Duration = Duration::from_secs(30);
/// Default burst if a rate is set.
const BURST: u32 = 10;
const TTL: &str = "a TTL in seconds, 0 to 3600";
