//! The plugin `log`: one line per query, from a format that is compiled when the Corefile is read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use wire::{Class, Flags, Name, Opcode, Proto, RType, Rcode};

use super::json;
use super::log_format::{
    push_bracketed, push_class, push_ip, push_name, push_number, push_rcode, push_seconds, push_type,
};
use super::logger::{Format, LineRing, begin_json};
use super::metadata::Labels;

/// One `log` directive: which queries are logged, and in which format.
#[derive(Debug, Clone)]
pub struct LogRule {
    /// Names within this zone.
    pub zone: Name,
    /// CoreDNS's format text, with `{common}` and `{combined}` replaced.
    pub format: String,
    /// The outcomes that are logged.
    pub classes: Classes,
}

/// A set of outcome classes, as in `class` of the Corefile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    /// NOERROR with an answer or a delegation, and all outcomes of no other class.
    pub success: bool,
    /// NXDOMAIN and NODATA.
    pub denial: bool,
    /// SERVFAIL, NOTIMP, REFUSED and other rcodes.
    pub error: bool,
}

/// A query and its reply: the fields that a line can print.
#[derive(Debug, Clone, Copy)]
pub struct LogEntry<'q> {
    /// The client.
    pub client: SocketAddr,
    /// The address that received the query, if known.
    pub local: Option<SocketAddr>,
    /// UDP or TCP.
    pub proto: Proto,
    /// The query's id.
    pub id: u16,
    /// The query's opcode.
    pub opcode: Opcode,
    /// The query name.
    pub name: &'q Name,
    /// The query type.
    pub rtype: RType,
    /// The query class.
    pub class: Class,
    /// The query's size in bytes.
    pub size: usize,
    /// Whether the client set DO.
    pub dnssec_ok: bool,
    /// The client's EDNS size as sent; printed with a minimum of 512, and as 65535 over TCP.
    pub bufsize: u16,
    /// The reply's rcode.
    pub rcode: Rcode,
    /// The reply's flags as sent.
    pub flags: Flags,
    /// The reply's size in bytes.
    pub rsize: usize,
    /// From receipt to reply, in nanoseconds.
    pub nanos: u64,
    /// Records in the reply's answer section.
    pub answers: u16,
    /// Whether the reply's authority section holds an SOA.
    pub soa: bool,
    /// The upstream of the answer, if any.
    pub upstream: Option<SocketAddr>,
}

impl LogEntry<'_> {
    /// The class of the outcome.
    ///
    /// CoreDNS also classifies an answer with an expired signature as an error when the client set DO; signatures are not checked here.
    pub fn outcome(&self) -> LogClass {
        let transfer = matches!(self.rtype, RType::AXFR | RType::IXFR);
        match self.rcode {
            _ if transfer || matches!(self.opcode, Opcode::NOTIFY | Opcode::UPDATE) => LogClass::Error,
            Rcode::NOERROR if self.answers == 0 && self.soa => LogClass::Denial,
            Rcode::NOERROR => LogClass::Success,
            Rcode::NXDOMAIN if self.answers == 0 => LogClass::Denial,
            _ => LogClass::Error,
        }
    }

    /// The label `log/type`: CoreDNS's response type, except that referrals are not distinguished from answers.
    fn kind(&self) -> &'static str {
        let transfer = matches!(self.rtype, RType::AXFR | RType::IXFR);
        match (self.opcode, self.rcode) {
            (Opcode::UPDATE, _) => "UPDATE",
            (opcode, _) if transfer || opcode == Opcode::NOTIFY => "META",
            (_, Rcode::NOERROR) if self.answers == 0 && self.soa => "NODATA",
            (_, Rcode::NOERROR) => "NOERROR",
            (_, Rcode::NXDOMAIN) if self.answers == 0 => "NXDOMAIN",
            (_, Rcode::SERVFAIL | Rcode::NOTIMP) if self.answers == 0 => "SERVERERROR",
            _ => "OTHERERROR",
        }
    }

    /// As CoreDNS prints it: 65535 over TCP, else the client's size or 512, whichever is larger.
    fn bufsize(&self) -> u16 {
        match self.proto {
            Proto::Udp | Proto::Quic => self.bufsize.max(512),
            Proto::Tcp => u16::MAX,
        }
    }
}

/// The outcome class of a query, as in `class` of the Corefile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogClass {
    /// An answer, a referral, or an empty NOERROR without SOA.
    Success,
    /// NXDOMAIN and NODATA.
    Denial,
    /// Everything else; transfers, NOTIFY and UPDATE always.
    Error,
}

impl LogClass {
    /// The label `log/class`.
    fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Denial => "denial",
            Self::Error => "error",
        }
    }

    fn is_in(self, classes: Classes) -> bool {
        match self {
            Self::Success => classes.success,
            Self::Denial => classes.denial,
            Self::Error => classes.error,
        }
    }
}

/// The rules of a server block.
#[derive(Debug, Clone, Default)]
pub struct LogRules {
    rules: Box<[Rule]>,
}

#[derive(Debug, Clone)]
struct Rule {
    zone: Name,
    classes: Classes,
    format: LogFormat,
}

impl LogRules {
    /// Compiles the rules, in file order; `labels` where the block has `metadata`.
    pub fn new(rules: Vec<LogRule>, format: Format, labels: Option<&Arc<dyn Labels>>) -> Self {
        let compile = |rule: LogRule| Rule {
            zone: rule.zone,
            classes: rule.classes,
            format: LogFormat::new(&rule.format, format, labels),
        };
        Self { rules: rules.into_iter().map(compile).collect() }
    }

    /// The format for this name and outcome. The first rule with a zone that contains the name
    /// decides, even if it does not log this outcome.
    #[inline]
    pub fn find(&self, name: &Name, outcome: LogClass) -> Option<&LogFormat> {
        let rule = self.rules.iter().find(|rule| name.is_within(&rule.zone))?;
        outcome.is_in(rule.classes).then_some(&rule.format)
    }

    /// Logs a query if a rule selects it.
    #[inline]
    pub fn log(&self, entry: &LogEntry<'_>, to: &mut LineRing) {
        if let Some(format) = self.find(entry.name, entry.outcome()) {
            format.write(entry, to);
        }
    }
}

/// A compiled format.
#[derive(Debug, Clone)]
pub struct LogFormat {
    parts: Box<[Part]>,
    format: Format,
    labels: Option<Arc<dyn Labels>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(Box<[u8]>),
    /// A literal of one byte, such as the blank between two placeholders.
    Byte(u8),
    Type,
    Name,
    Class,
    Proto,
    Size,
    Remote,
    Port,
    Local,
    Id,
    Opcode,
    DnssecOk,
    Bufsize,
    Rcode,
    Rsize,
    Duration,
    Flags,
    /// `forward/upstream`
    Upstream,
    /// `log/type`
    Kind,
    /// `log/class`
    LogClass,
    /// A label of another plugin.
    Label(Box<str>),
}

impl Part {
    /// The part for a placeholder, braces included; without `metadata` a label reads `-`. `None` for text that is no placeholder.
    fn of(placeholder: &str, labels: bool) -> Option<Self> {
        Some(match placeholder {
            "{type}" => Self::Type,
            "{name}" => Self::Name,
            "{class}" => Self::Class,
            "{proto}" => Self::Proto,
            "{size}" => Self::Size,
            "{remote}" => Self::Remote,
            "{port}" => Self::Port,
            "{local}" => Self::Local,
            "{>id}" => Self::Id,
            "{>opcode}" => Self::Opcode,
            "{>do}" => Self::DnssecOk,
            "{>bufsize}" => Self::Bufsize,
            "{rcode}" => Self::Rcode,
            "{rsize}" => Self::Rsize,
            "{duration}" => Self::Duration,
            "{>rflags}" => Self::Flags,
            "{/forward/upstream}" if labels => Self::Upstream,
            "{/log/type}" if labels => Self::Kind,
            "{/log/class}" if labels => Self::LogClass,
            other => match other.strip_prefix("{/").and_then(|label| label.strip_suffix('}')) {
                Some(label) if labels => Self::Label(label.into()),
                Some(_) => Self::Literal(Box::from(*b"-")),
                None => return None,
            },
        })
    }
}

impl LogFormat {
    /// Compiles CoreDNS's format text. Text in braces that is no placeholder is printed as it is; of nested braces the innermost
    /// are looked up.
    pub fn new(text: &str, format: Format, labels: Option<&Arc<dyn Labels>>) -> Self {
        let mut parts = Vec::new();
        let mut literal = String::new();
        if format == Format::Text {
            literal.push_str("[INFO] ");
        }
        let mut rest = text;
        while let Some(close) = rest.find('}') {
            let (before, after) = rest.split_at(close + 1);
            let open = before.rfind('{').unwrap_or(before.len());
            match Part::of(&before[open..], labels.is_some()) {
                Some(Part::Literal(bytes)) => {
                    literal.push_str(&before[..open]);
                    literal.push_str(&String::from_utf8_lossy(&bytes));
                }
                Some(part) => {
                    literal.push_str(&before[..open]);
                    push_literal(&mut parts, &mut literal);
                    parts.push(part);
                }
                None => literal.push_str(before),
            }
            rest = after;
        }
        literal.push_str(rest);
        if format == Format::Text {
            literal.push('\n');
        }
        push_literal(&mut parts, &mut literal);
        Self { parts: parts.into(), format, labels: labels.cloned() }
    }

    /// Writes the line of `entry` to `ring`. JSON lines read the clock for their time.
    #[inline]
    pub fn write(&self, entry: &LogEntry<'_>, ring: &mut LineRing) {
        match self.format {
            Format::Text => ring.write(|line| self.render(entry, line)),
            Format::Json => ring.write(|line| self.render_json(entry, clock::wall(), line)),
        };
    }

    #[inline]
    fn render(&self, entry: &LogEntry<'_>, line: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Literal(text) => line.extend_from_slice(text),
                Part::Byte(byte) => line.push(*byte),
                Part::Type => push_type(line, entry.rtype),
                Part::Name => push_name(line, entry.name),
                Part::Class => push_class(line, entry.class),
                Part::Proto => line.extend_from_slice(entry.proto.label().as_bytes()),
                Part::Size => push_number(line, entry.size as u64),
                Part::Remote => push_bracketed(line, entry.client.ip()),
                Part::Port => push_number(line, u64::from(entry.client.port())),
                Part::Local => match entry.local {
                    Some(local) => push_bracketed(line, local.ip()),
                    None => line.push(b'-'),
                },
                Part::Id => push_number(line, u64::from(entry.id)),
                Part::Opcode => push_number(line, u64::from(entry.opcode.0)),
                Part::DnssecOk => line.extend_from_slice(bool_text(entry.dnssec_ok)),
                Part::Bufsize => push_number(line, u64::from(entry.bufsize())),
                Part::Rcode => push_rcode(line, entry.rcode),
                Part::Rsize => push_number(line, entry.rsize as u64),
                Part::Duration => {
                    push_seconds(line, entry.nanos);
                    line.push(b's');
                }
                Part::Flags => push_flags(line, entry.flags),
                Part::Upstream => match entry.upstream {
                    Some(upstream) => line.extend_from_slice(upstream.to_string().as_bytes()),
                    None => line.push(b'-'),
                },
                Part::Kind => line.extend_from_slice(entry.kind().as_bytes()),
                Part::LogClass => line.extend_from_slice(entry.outcome().label().as_bytes()),
                Part::Label(label) => self.push_label(entry, label, line),
            }
        }
    }

    /// Appends a label's value. A value with a quote or anything but printable ASCII reads `-`, since it could forge lines.
    fn push_label(&self, entry: &LogEntry<'_>, label: &str, line: &mut Vec<u8>) {
        let client = entry.client.ip().to_canonical();
        let value = self.labels.as_ref().and_then(|labels| labels.label(label, entry.name, Some(client)));
        let is_plain = |value: &String| value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"');
        match value.filter(is_plain) {
            Some(value) => line.extend_from_slice(value.as_bytes()),
            None => line.push(b'-'),
        }
    }

    /// Renders CoreDNS's JSON: the formatted line as `msg`, and each field under its own key.
    fn render_json(&self, entry: &LogEntry<'_>, at: SystemTime, line: &mut Vec<u8>) {
        begin_json(line, at, "INFO");
        let message = line.len();
        self.render(entry, line);
        json::quote_from(line, message);
        line.extend_from_slice(b",\"plugin\":\"log\",\"client_ip\":\"");
        push_ip(line, entry.client.ip());
        line.extend_from_slice(b"\",\"client_port\":");
        push_number(line, u64::from(entry.client.port()));
        line.extend_from_slice(b",\"qname\":");
        let name = line.len();
        push_name(line, entry.name);
        json::quote_from(line, name);
        line.extend_from_slice(b",\"qtype\":\"");
        push_type(line, entry.rtype);
        line.extend_from_slice(b"\",\"qclass\":\"");
        push_class(line, entry.class);
        line.extend_from_slice(b"\",\"protocol\":\"");
        line.extend_from_slice(entry.proto.label().as_bytes());
        line.extend_from_slice(b"\",\"id\":");
        push_number(line, u64::from(entry.id));
        line.extend_from_slice(b",\"opcode\":");
        push_number(line, u64::from(entry.opcode.0));
        line.extend_from_slice(b",\"request_size\":");
        push_number(line, entry.size as u64);
        line.extend_from_slice(b",\"dnssec_ok\":");
        line.extend_from_slice(bool_text(entry.dnssec_ok));
        line.extend_from_slice(b",\"bufsize\":");
        push_number(line, u64::from(entry.bufsize()));
        line.extend_from_slice(b",\"rcode\":\"");
        push_rcode(line, entry.rcode);
        line.extend_from_slice(b"\",\"response_size\":");
        push_number(line, entry.rsize as u64);
        line.extend_from_slice(b",\"duration_seconds\":");
        push_seconds(line, entry.nanos);
        line.extend_from_slice(b"}\n");
    }
}

fn push_literal(parts: &mut Vec<Part>, literal: &mut String) {
    match *std::mem::take(literal).into_bytes() {
        [] => {}
        [byte] => parts.push(Part::Byte(byte)),
        ref bytes => parts.push(Part::Literal(bytes.into())),
    }
}

fn bool_text(value: bool) -> &'static [u8] {
    if value { b"true" } else { b"false" }
}

/// Appends the flags that are set, with commas between them.
#[inline]
fn push_flags(line: &mut Vec<u8>, flags: Flags) {
    const FLAGS: [(u16, [u8; 3]); 8] = [
        (Flags::QR, *b"qr,"),
        (Flags::AA, *b"aa,"),
        (Flags::TC, *b"tc,"),
        (Flags::RD, *b"rd,"),
        (Flags::RA, *b"ra,"),
        (RESERVED, *b"z,,"),
        (Flags::AD, *b"ad,"),
        (Flags::CD, *b"cd,"),
    ];
    let before = line.len();
    for (flag, name) in FLAGS {
        if flags.has(flag) {
            line.extend_from_slice(&name);
            if flag == RESERVED {
                line.pop();
            }
        }
    }
    if line.len() > before {
        line.pop();
    }
}

/// The header bit that is still reserved (RFC 1035, section 4.1.1).
const RESERVED: u16 = 0x0040;

#[cfg(test)]
mod tests;
