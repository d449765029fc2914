//! DNS over HTTPS by the program `curl`.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use crate::command::output;
use crate::place::tempdir;

/// A response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpResponse {
    /// The version and the status, as `2 200`; empty without a response.
    pub status: String,
    /// The fields, names in lower case, in the order of arrival.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// The value of a field; empty if it is missing.
    pub fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value)
    }
}

/// Requests `path` of the server, with these arguments of curl; `body` is sent by POST. Certificates
/// are not verified.
///
/// # Panics
/// When curl cannot be started.
pub fn curl(scheme: &str, at: SocketAddr, path: &str, body: Option<&[u8]>, args: &[&str]) -> HttpResponse {
    let files = tempdir();
    let file = |name: &str| files.path().join(name);
    let mut command = Command::new("curl");
    command.args(["-s", "-k", "--noproxy", "*", "--max-time", "8", "--path-as-is"]).args(args);
    command.arg("-D").arg(file("head")).arg("-o").arg(file("out"));
    if let Some(body) = body {
        std::fs::write(file("body"), body).expect("the test's directory is writable");
        command.arg("--data-binary").arg(format!("@{}", file("body").display()));
    }
    command.arg(format!("{scheme}://{at}{path}"));
    output(command, Duration::from_secs(10));
    let head = std::fs::read_to_string(file("head")).unwrap_or_default();
    // Interim responses (100 Continue) come before the last one.
    let head = head.trim_end().rsplit("\r\n\r\n").next().unwrap_or_default();
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default().trim_start_matches("HTTP/");
    let status = status.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let fields = lines.filter_map(|line| line.split_once(':'));
    let fields = fields.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect();
    HttpResponse { status, fields, body: std::fs::read(file("out")).unwrap_or_default() }
}
