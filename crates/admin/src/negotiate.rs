//! Content negotiation of /metrics: format and coding, chosen as by Go's `expfmt` and `promhttp` (RFC 9110, section 12.5).

use hyper::HeaderMap;
use hyper::header::{ACCEPT, ACCEPT_ENCODING};

use metrics::Form;

/// The negotiated format and coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Negotiated {
    pub(super) form: Form,
    pub(super) gzip: bool,
    /// The scraper's escaping scheme, returned to it. None of our metric names needs escaping.
    escaping: &'static str,
}

impl Negotiated {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (form, escaping) = form(header(ACCEPT));
        Self { form, escaping, gzip: gzip(header(ACCEPT_ENCODING)) }
    }

    pub(super) fn content_type(&self) -> String {
        let escaping = self.escaping;
        match self.form {
            Form::Text => format!("text/plain; version=0.0.4; charset=utf-8; escaping={escaping}"),
            Form::OpenMetrics(version) => {
                format!("application/openmetrics-text; version={version}; charset=utf-8; escaping={escaping}")
            }
            Form::Protobuf => format!(
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; escaping={escaping}"
            ),
        }
    }
}

/// Returns the first format that matches the clause of highest quality, and the last escaping named up to there. The default is
/// text.
fn form(accept: &str) -> (Form, &'static str) {
    let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(Clause::read).collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality).then(a.wildcards().cmp(&b.wildcards())));
    let mut escaping = ESCAPINGS[0];
    for clause in clauses {
        let named = clause.parameter("escaping");
        escaping = ESCAPINGS.into_iter().find(|known| named == Some(*known)).unwrap_or(escaping);
        if let Some(&(form, _)) =
            FORMS.iter().find(|(_, (media, parameters))| clause.matches(media, parameters))
        {
            return (form, escaping);
        }
    }
    (Form::Text, escaping)
}

/// One of the media types of an Accept header.
struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next()?;
        let (kind, subtype) = if media == "*" { ("*", "*") } else { media.split_once('/')? };
        let mut clause = Self { kind, subtype, quality: 1.0, parameters: Vec::new() };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim() {
                "q" => clause.quality = value.trim().parse().unwrap_or(0.0),
                name => clause.parameters.push((name, value.trim())),
            }
        }
        Some(clause)
    }

    fn wildcards(&self) -> usize {
        usize::from(self.kind == "*") + usize::from(self.subtype == "*")
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn matches(&self, media: &str, parameters: &[(&str, &str)]) -> bool {
        let Some((kind, subtype)) = media.split_once('/') else { return false };
        let default = match (self.kind, self.subtype) {
            ("application", "openmetrics-text") => Some("0.0.1"),
            ("text", "plain") => Some("0.0.4"),
            _ => None,
        };
        let default = |name: &str| default.filter(|_| name == "version");
        ["*", kind].contains(&self.kind)
            && ["*", subtype].contains(&self.subtype)
            && parameters
                .iter()
                .all(|(name, value)| self.parameter(name).or_else(|| default(name)) == Some(*value))
    }
}

/// Whether gzip is accepted, with a higher quality than identity.
fn gzip(accept: &str) -> bool {
    let quality = |coding: &str| {
        let specs = accept.split(',').filter_map(|spec| {
            let (name, rest) = spec.split_once(';').unwrap_or((spec, ""));
            let named = [coding, "*"].contains(&name.trim());
            let quality = rest.trim().strip_prefix("q=").map_or(Some(1.0), |q| q.trim().parse::<f32>().ok());
            quality.filter(|_| named)
        });
        specs.fold(-1.0, f32::max)
    };
    quality("gzip") > quality("identity").max(0.0)
}

/// Formats by preference, for clauses that match several.
const FORMS: [(Form, Media); 4] = [
    (Form::OpenMetrics("1.0.0"), ("application/openmetrics-text", &[("version", "1.0.0")])),
    (Form::OpenMetrics("0.0.1"), ("application/openmetrics-text", &[("version", "0.0.1")])),
    (
        Form::Protobuf,
        (
            "application/vnd.google.protobuf",
            &[("proto", "io.prometheus.client.MetricFamily"), ("encoding", "delimited")],
        ),
    ),
    (Form::Text, ("text/plain", &[("version", "0.0.4")])),
];
/// A media type and its required parameters.
type Media = (&'static str, &'static [(&'static str, &'static str)]);
/// Escaping schemes; the first is the default. `dots` is not supported: it would rename even names that need no escaping.
const ESCAPINGS: [&str; 3] = ["underscores", "allow-utf-8", "values"];

#[cfg(test)]
mod tests {
    use super::*;

    const PROTO: &str =
        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
    const OPEN: Form = Form::OpenMetrics("1.0.0");

    #[test]
    fn format_by_quality() {
        let rows = [
            (String::new(), Form::Text),
            ("*/*".to_owned(), Form::Text),
            ("*".to_owned(), Form::Text),
            ("text/plain".to_owned(), Form::Text),
            ("text/html, image/png".to_owned(), Form::Text),
            ("text/plain;version=1.0.0, application/openmetrics-text;version=1.0.0;q=0.1".to_owned(), OPEN),
            ("application/openmetrics-text; version=1.0.0".to_owned(), OPEN),
            ("application/openmetrics-text".to_owned(), Form::OpenMetrics("0.0.1")),
            ("application/openmetrics-text;version=2.0.0".to_owned(), Form::Text),
            // Prometheus 2, as it is and with native histograms; Prometheus 3.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
                    .to_owned(),
                OPEN,
            ),
            (
                format!("{PROTO},application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"),
                Form::Protobuf,
            ),
            (format!("text/plain;version=0.0.4;q=0.3, {PROTO};q=0.4"), Form::Protobuf),
            (format!("{PROTO};q=0.3, text/plain;version=0.0.4;q=0.4"), Form::Text),
            ("application/vnd.google.protobuf".to_owned(), Form::Text),
            (PROTO.replace("delimited", "text"), Form::Text),
        ];
        for (accept, expected) in rows {
            assert_eq!(form(&accept).0, expected, "{accept}");
        }
    }

    #[test]
    fn escaping_is_returned() {
        let content_type = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            Negotiated::of(&headers).content_type()
        };
        for (accept, expected) in [
            ("*/*", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"),
            (
                "text/plain;version=0.0.4;escaping=allow-utf-8",
                "text/plain; version=0.0.4; charset=utf-8; escaping=allow-utf-8",
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=values,text/plain;escaping=underscores;q=0.1",
                "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=values",
            ),
            (
                PROTO,
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; escaping=underscores",
            ),
        ] {
            assert_eq!(content_type(accept), expected, "{accept}");
        }
    }

    #[test]
    fn gzip_by_quality() {
        for (accept, expected) in [
            ("", false),
            ("gzip", true),
            ("deflate, gzip;q=1.0, *;q=0.5", true),
            ("gzip;q=0", false),
            ("identity", false),
            ("identity, gzip", false),
            ("identity;q=0.1, gzip;q=0.5", true),
            ("*", false),
            ("gzip;q=much", false),
        ] {
            assert_eq!(gzip(accept), expected, "{accept}");
        }
    }
}
