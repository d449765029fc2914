//! An HTTP client and a parser of the Prometheus text format.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::clock::eventually;

/// Sends `GET path` to `server` and returns status and body.
///
/// # Errors
/// No connection, no complete reply within 5 s, or not HTTP.
pub fn http_get(server: SocketAddr, path: &str) -> Result<(u16, String)> {
    let (head, body) = http_exchange(server, path)?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).context("no status")?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Ok((status, if chunked { unchunked(&body)? } else { body }))
}

/// Sends `GET path` to `server` and returns the reply's head and its undecoded body.
///
/// # Errors
/// No connection, no complete reply within 5 s, or a head without end.
pub fn http_exchange(server: SocketAddr, path: &str) -> Result<(String, String)> {
    http_reply(http_request(server, path)?)
}

/// Connects to `server` and sends `GET path`; returns the connection.
///
/// # Errors
/// No connection, or one that ended.
pub fn http_request(server: SocketAddr, path: &str) -> Result<TcpStream> {
    let mut stream =
        TcpStream::connect_timeout(&server, PATIENCE).with_context(|| format!("connect {server}"))?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {server}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).context("send the request")?;
    Ok(stream)
}

/// Reads the reply to [`http_request`]: its head and its undecoded body.
///
/// # Errors
/// No complete reply within 5 s, or a head without end.
pub fn http_reply(mut stream: TcpStream) -> Result<(String, String)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).context("read the reply")?;
    let (head, body) = reply.split_once("\r\n\r\n").context("no end of the head")?;
    Ok((head.to_owned(), body.to_owned()))
}

/// The samples of one scrape.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    samples: Vec<Sample>,
}

impl Metrics {
    /// Scrapes `/metrics`.
    ///
    /// # Panics
    /// When the request fails.
    pub fn of(server: SocketAddr) -> Self {
        let (status, body) =
            http_get(server, "/metrics").unwrap_or_else(|error| panic!("metrics: {error:#}"));
        assert_eq!(status, 200, "{body}");
        Self::parse(&body)
    }

    /// Scrapes until `done` is true: a query is counted only after its reply is sent.
    ///
    /// # Panics
    /// When `done` is not true within 3 s.
    pub fn when(server: SocketAddr, done: impl Fn(&Self) -> bool) -> Self {
        eventually("the metrics to include it", Duration::from_secs(3), || {
            let metrics = Self::of(server);
            done(&metrics).then_some(metrics)
        })
    }

    /// Scrapes until `queries` queries are counted.
    ///
    /// # Panics
    /// When they are not counted within 3 s.
    pub fn after_queries(server: SocketAddr, queries: usize) -> Self {
        let all = queries as f64;
        Self::when(server, |metrics| metrics.count("coredns_dns_responses_total", &[]) >= all)
    }

    /// Parses the text format.
    ///
    /// # Panics
    /// On a malformed line.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples =
            lines.map(|line| sample(line).unwrap_or_else(|| panic!("not a sample: {line}"))).collect();
        Self { samples }
    }

    /// The sum of the samples with this name that carry all these labels; `None` without such a
    /// sample.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut sum = None;
        for sample in self.matching(name, labels) {
            *sum.get_or_insert(0.0) += sample.value;
        }
        sum
    }

    /// Like [`Self::value`], but 0 without such a sample.
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.value(name, labels).unwrap_or(0.0)
    }

    /// The label names of the first sample with this name.
    pub fn label_names(&self, name: &str) -> Vec<&str> {
        let first = self.samples.iter().find(|sample| sample.name == name);
        first.map(|sample| sample.labels.keys().map(String::as_str).collect()).unwrap_or_default()
    }

    /// The values of one label over all samples with this name.
    pub fn label_values(&self, name: &str, label: &str) -> Vec<&str> {
        let samples = self.samples.iter().filter(|sample| sample.name == name);
        samples.filter_map(|sample| sample.labels.get(label).map(String::as_str)).collect()
    }

    /// All samples: name, labels and value.
    pub fn samples(&self) -> impl Iterator<Item = (&str, &BTreeMap<String, String>, f64)> {
        self.samples.iter().map(|sample| (&sample.name[..], &sample.labels, sample.value))
    }

    fn matching<'s>(&'s self, name: &'s str, labels: &'s [(&str, &str)]) -> impl Iterator<Item = &'s Sample> {
        self.samples.iter().filter(move |sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.get(*key).is_some_and(|found| found == value))
        })
    }
}

#[derive(Debug, Clone)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, rest) = series.split_once('{').unwrap_or((series, "}"));
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_suffix('}')?;
    while let Some((key, after)) = rest.split_once("=\"") {
        let mut end = 0;
        while after.as_bytes().get(end)? != &b'"' {
            end += if after.as_bytes()[end] == b'\\' { 2 } else { 1 };
        }
        labels.insert(key.to_owned(), after[..end].replace("\\\"", "\"").replace("\\\\", "\\"));
        rest = after[end + 1..].trim_start_matches(',');
    }
    Some(Sample { name: name.to_owned(), labels, value: value.parse().ok()? })
}

fn unchunked(mut body: &str) -> Result<String> {
    let mut whole = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").context("chunk without size")?;
        let size = usize::from_str_radix(size, 16)?;
        if size == 0 {
            return Ok(whole);
        }
        whole.push_str(rest.get(..size).context("half a chunk")?);
        body = rest.get(size + 2..).context("chunk without end")?;
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_match_by_some_labels() {
        let metrics =
            Metrics::parse("# HELP a b\na{x=\"1\",y=\"q\\\"{}, \"} 2\na{x=\"2\",y=\"\"} 3.5\nb 7e+02\n");
        assert_eq!(metrics.value("a", &[("x", "1")]), Some(2.0));
        assert_eq!(metrics.value("a", &[]), Some(5.5));
        assert_eq!(metrics.value("a", &[("x", "3")]), None);
        assert_eq!(metrics.value("b", &[]), Some(700.0));
        assert_eq!(metrics.label_values("a", "y"), ["q\"{}, ", ""]);
    }

    #[test]
    fn chunks_are_joined() {
        assert_eq!(unchunked("3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n").unwrap(), "abcd");
    }
}
