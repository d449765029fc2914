//! Metrics of refreshed names, /status on a unix socket, and `localdns status`.

use std::convert::Infallible;
use std::fmt;
use std::fs::Permissions;
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::KnownName;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};
use stub_resolver::{Family, Question};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, spawn_blocking};

use super::{RESULTS, RefreshedFile, RefreshedFiles, Server};
use metrics::{Families, names};

/// The listening socket; dropping it removes the socket.
#[derive(Debug)]
pub struct StatusSocket {
    path: PathBuf,
    accepting: AbortHandle,
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        self.accepting.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves /status at `path`, mode 0600. A socket that a killed process left is replaced, other files are not.
///
/// # Errors
/// The system's; another process listens there; a file that is no socket is there.
pub fn listen(path: &Path, running: &Arc<impl Server>) -> io::Result<StatusSocket> {
    let _runtime = running.runtime().enter();
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "a file is there that is no socket; name another place with -status",
                ));
            }
            // Connecting to a process that does not accept times out once its queue is full. Only a refused connection shows that
            // no process listens, and that the socket file is left over.
            if connect(path, Duration::from_millis(1)).err().map(|error| error.kind())
                != Some(io::ErrorKind::ConnectionRefused)
            {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        listener => listener?,
    };
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    let accepting = running.runtime().spawn(accept(listener, Arc::downgrade(running))).abort_handle();
    Ok(StatusSocket { path: path.to_owned(), accepting })
}

async fn accept(listener: UnixListener, running: Weak<impl Server>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let running = running.clone();
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let asked = (request.uri().path() == "/status").then(|| running.upgrade()).flatten();
                async {
                    let body = match asked {
                        // Rendering takes time, and other tasks wait for this thread.
                        Some(server) => spawn_blocking(move || server.status()).await.ok(),
                        None => None,
                    };
                    Ok::<_, Infallible>(response(body))
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .max_buf_size(16 * 1024)
                .serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(PATIENCE, connection).await;
            drop(place);
        });
    }
}

fn response(body: Option<Value>) -> Response<Full<Bytes>> {
    let found = body.is_some();
    let text = body.map_or_else(|| "404 page not found\n".to_owned(), |body| format!("{body}\n"));
    let mut response = Response::new(Full::new(text.into()));
    if found {
        response
            .headers_mut()
            .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    } else {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}

/// The part of /status about refreshed names.
pub fn report(kept: &RefreshedFiles) -> Value {
    kept.all().iter().map(|kept| kept.report()).collect()
}

impl RefreshedFile {
    fn report(&self) -> Value {
        let now = clock::now();
        let state = self.state();
        let last = state.last.map(|last| {
            json!({
                "seconds_ago": now.saturating_duration_since(last.began).as_secs(),
                "took_seconds": last.took.as_secs_f64(),
                "result": RESULTS[last.result],
                "answered": last.answered,
                "failed": last.failed,
            })
        });
        let mut entries: Vec<_> = state.names.entries().collect();
        entries.sort_by_cached_key(|(question, _)| (question.name.to_string(), question.family));
        let entries: Vec<_> =
            entries.into_iter().map(|(question, entry)| self::entry(question, entry, now)).collect();
        json!({
            "file": self.file.display().to_string(),
            "servers": state.servers.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "last_round": last,
            "unpublished": state.publish_error,
            "entries": entries,
        })
    }
}

fn entry(question: &Question, entry: &KnownName, now: std::time::Instant) -> Value {
    let known = !entry.addresses.is_empty();
    json!({
        "name": question.name.to_string().trim_end_matches('.'),
        "family": family(question.family),
        "addresses": entry.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "source": known.then(|| entry.source.label()),
        "age_seconds": known.then(|| entry.age(now).as_secs()),
        "ttl_seconds": entry.ttl,
        "failures": entry.failures,
        "failure": entry.failure.map(|failure| failure.to_string()),
        "next_refresh_seconds": entry.due.saturating_duration_since(now).as_secs(),
    })
}

/// Adds the metrics of all refreshed names.
pub fn collect(kept: &RefreshedFiles, into: &mut Families) {
    let now = clock::now();
    for kept in kept.all() {
        let file = kept.file.display().to_string();
        let hostsfile = ("hostsfile", file.as_str());
        let state = kept.state();
        for (question, entry) in state.names.entries() {
            let name = question.name.to_string();
            let labels = [hostsfile, ("name", name.as_str()), ("family", family(question.family))];
            if !entry.addresses.is_empty() {
                let source = ("source", entry.source.label());
                let age = entry.age(now).as_secs_f64();
                let [file, name, family] = labels;
                into.gauge(names::REFRESH_ENTRY_AGE, &[file, name, family, source], age);
            }
            if let Some(ttl) = entry.ttl {
                into.gauge(names::REFRESH_ENTRY_TTL, &labels, ttl.into());
            }
            into.counter(names::REFRESH_FAILURES, &labels, entry.all_failures as f64);
        }
        for (result, count) in RESULTS.iter().zip(state.rounds) {
            into.counter(names::REFRESH_ROUNDS, &[hostsfile, ("result", result)], count as f64);
        }
        if let Some(last) = state.last {
            into.gauge(names::REFRESH_LAST_ROUND, &[hostsfile], last.wall as f64);
            into.gauge(names::REFRESH_LAST_ROUND_DURATION, &[hostsfile], last.took.as_secs_f64());
            into.gauge(names::REFRESH_LAST_ROUND_FAILED, &[hostsfile], last.failed as f64);
        }
        into.counter(names::REFRESH_PUBLISH_FAILURES, &[hostsfile], state.publish_failures as f64);
    }
}

/// A place where a server may serve its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// A unix socket.
    Socket(PathBuf),
    /// A unix socket that is used only if its server has read this Corefile.
    SocketOf(PathBuf, PathBuf),
    /// The address of its metrics.
    Page(SocketAddr),
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) | Self::SocketOf(path, _) => path.display().fmt(f),
            Self::Page(address) => address.fmt(f),
        }
    }
}

/// Requests the status at the first of these places that answers, and returns it as a table.
///
/// # Errors
/// One line: no place answers, or the answer cannot be parsed.
pub fn print(places: &[Shown]) -> Result<String, String> {
    let mut failed = Vec::new();
    for place in places {
        match fetch(place) {
            Ok(body) => {
                let report: Value = serde_json::from_str(&body)
                    .map_err(|error| format!("the answer of {place} cannot be read: {error}"))?;
                match place {
                    Shown::SocketOf(_, corefile) if report["corefile"] != json!(corefile) => {
                        failed.push(format!("{place} (its server reads another Corefile)"));
                    }
                    _ => return Ok(table(&report)),
                }
            }
            Err(error) => failed.push(format!("{place} ({error})")),
        }
    }
    Err(format!(
        "no server answers at {}; -conf FILE finds the one of a Corefile with `prometheus`, -status names its ADDRESS:PORT or a socket",
        failed.join(", ")
    ))
}

fn fetch(place: &Shown) -> io::Result<String> {
    match place {
        Shown::Socket(path) | Shown::SocketOf(path, _) => {
            let stream = connect(path, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            ask(stream)
        }
        Shown::Page(address) => {
            let stream = TcpStream::connect_timeout(address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            ask(stream)
        }
    }
}

fn ask(mut stream: impl io::Read + io::Write) -> io::Result<String> {
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: localdns\r\nConnection: close\r\n\r\n")?;
    let mut reply = String::new();
    stream.take(MAX_REPLY).read_to_string(&mut reply)?;
    let body = reply.split_once("\r\n\r\n").filter(|(head, _)| head.starts_with("HTTP/1.1 200 "));
    body.map(|(_, body)| body.to_owned()).ok_or_else(|| io::Error::other("it has no /status"))
}

/// Connects, with a timeout in case the server's accept queue is full.
fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(patience))?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(OwnedFd::from(socket).into())
}

fn table(report: &Value) -> String {
    let mut text = String::new();
    let reload = &report["reload_failed"];
    if let Some(ago) = reload["seconds_ago"].as_u64() {
        // Only the first line: the Corefile's text below it is for the log.
        let error = cell(&reload["error"].as_str().and_then(|error| error.lines().next()).into());
        let ago = span(ago);
        text.push_str(&format!(
            "the last reload failed {ago} ago, the previous configuration is in use: {error}\n"
        ));
    }
    for file in list(report, "refresh") {
        let entries = list(file, "entries");
        let failing = entries.iter().filter(|entry| !entry["failure"].is_null()).count();
        let round = match file["last_round"]["seconds_ago"].as_u64() {
            None => "not looked up yet".to_owned(),
            Some(ago) => {
                let answered = entries.len() - failing;
                let ago = span(ago);
                format!("{answered} of {} lookups answered, the last round was {ago} ago", entries.len())
            }
        };
        text.push_str(&format!("{}: {round}\n", cell(&file["file"])));
        if file["unpublished"].is_string() {
            text.push_str(&format!("cannot be written: {}\n", cell(&file["unpublished"])));
        }
        let mut rows = vec![HEADER.map(str::to_owned)];
        for entry in entries {
            let addresses: Vec<_> = list(entry, "addresses").iter().map(cell).collect();
            let addresses = match addresses.as_slice() {
                [] => "-".to_owned(),
                [one] => one.clone(),
                [one, more @ ..] => format!("{one} +{}", more.len()),
            };
            let age = |key| entry[key].as_u64().map_or_else(|| "-".to_owned(), span);
            rows.push([
                cell(&entry["name"]),
                cell(&entry["family"]),
                cell(&entry["source"]),
                age("age_seconds"),
                age("next_refresh_seconds"),
                addresses,
                cell(&entry["failure"]),
            ]);
        }
        let width =
            |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: Vec<_> = (0..HEADER.len()).map(width).collect();
        for row in &rows {
            let cells: Vec<_> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
    }
    clusters(report).for_each(|line| text.push_str(&line));
    upstreams(report).for_each(|line| text.push_str(&line));
    if text.is_empty() { "no names are refreshed\n".to_owned() } else { text }
}

/// A line for each cluster, and one for each kind of its objects.
fn clusters(report: &Value) -> impl Iterator<Item = String> {
    let age = |value: &Value| value.as_u64().map(span);
    list(&report["kubernetes"], "clusters").iter().map(move |cluster| {
        let known = if cluster["synced"] == true { "all objects known" } else { "not all objects known yet" };
        let event =
            age(&cluster["event_age_seconds"]).map_or_else(|| "never".to_owned(), |age| format!("{age} ago"));
        let mut text = format!("kubernetes {}: {known}, last change received {event}", cell(&cluster["api"]));
        if let Some(age) = age(&cluster["snapshot_age_seconds"]) {
            text.push_str(&format!(", answers from a snapshot {age} old"));
        }
        for right in list(cluster, "rights_missing") {
            text.push_str(&format!(", may not {}", cell(right)));
        }
        text.push('\n');
        for kind in list(cluster, "kinds") {
            let known = if kind["known"] == true { "all known" } else { "not all known" };
            let followed =
                if kind["followed"] == true { "changes are received" } else { "changes are not received" };
            let objects = cell(&kind["objects"]);
            text.push_str(&format!("  {objects} {}: {known}, {followed}\n", cell(&kind["kind"])));
        }
        for one in list(cluster, "problems") {
            let [subject, problem, remedy] = ["subject", "problem", "remedy"].map(|key| cell(&one[key]));
            text.push_str(&format!("  {subject}: {problem}; {remedy}\n"));
        }
        text
    })
}

/// A line for each upstream that is down, or sends our queries back.
fn upstreams(report: &Value) -> impl Iterator<Item = String> {
    list(report, "upstreams").iter().filter(|upstream| upstream["up"] == false).map(|upstream| {
        let [address, transport, fails] = ["address", "transport", "fails"].map(|key| cell(&upstream[key]));
        let why = match upstream["loops"] == true {
            true => "sends our queries back".to_owned(),
            false => format!("is down, failed {fails} times in a row"),
        };
        format!("upstream {address} ({transport}) {why}\n")
    })
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// A short duration: `59s`, `15m`, `3h`, `4d`.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A value without control characters, since any process may listen there.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => node::escaped(text),
        other => node::escaped(&other.to_string()),
    }
}

fn family(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ipv4",
        Family::Ipv6 => "ipv6",
    }
}

/// The default path of /status.
pub const DEFAULT_SOCKET: &str = "/run/localdns.sock";
const HEADER: [&str; 7] = ["NAME", "FAMILY", "SOURCE", "AGE", "NEXT", "ADDRESSES", "FAILURE"];
const CONNECTIONS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(5);
const MAX_REPLY: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_escapes_control_characters() {
        let text = "\u{1b}[2J\u{9b}m\u{202e}\nb";
        let file = json!({ "file": text, "unpublished": text, "entries": [
            { "name": text, "family": text, "source": text, "addresses": [text, text], "failure": text },
            { "name": { text: text }, "addresses": [[text]] },
        ] });
        let cluster = json!({ "api": text, "rights_missing": [text], "kinds": [{ "kind": text, "objects": text }],
            "problems": [{ "subject": text, "problem": text, "remedy": text }] });
        let report = json!({
            "reload_failed": { "seconds_ago": 1, "error": text },
            "refresh": [file],
            "kubernetes": { "clusters": [cluster] },
            "upstreams": [{ "up": false, "address": text, "transport": text, "fails": text }],
        });
        let shown = table(&report);
        assert!(shown.contains("cannot be written: \\u{1b}[2J\\u{9b}m\\u{202e}\\nb\n"), "{shown}");
        let obeyed = shown.chars().find(|one| one.is_control() && *one != '\n' || *one == '\u{202e}');
        assert_eq!(obeyed, None, "{shown}");
        assert_eq!(shown.lines().count(), 10, "{shown}");
    }
}
