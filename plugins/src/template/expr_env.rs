//! Data of a query for expressions.

use std::net::SocketAddr;

use logging::metadata::Labels;
use wire::{Proto, Query};

use super::Facts;
use plugin::QueryContext;
use plugin::hooks::ReplySize;

/// The functions of expressions about a query, with CoreDNS's values.
pub(super) fn facts<'q>(
    context: &'q QueryContext<'_>,
    labels: Option<&'q dyn Labels>,
    size: ReplySize,
    query: &'q Query<'_>,
    name: &str,
) -> Facts<'q> {
    let (client, server) = (context.client(), context.server());
    let ip = |address: SocketAddr| address.ip().to_canonical().to_string();
    // As CoreDNS's `bufsize`: the client's size is limited for UDP only.
    let most = match context.proto {
        Proto::Udp => size.displayed(query.udp_limit()),
        Proto::Tcp => usize::from(u16::MAX),
    };
    let known = [
        ("type", query.rtype.to_string().into()),
        ("name", name.into()),
        ("class", query.class.to_string().into()),
        ("proto", context.proto.label().into()),
        ("size", (query.size as i64).into()),
        ("client_ip", ip(client).into()),
        ("port", client.port().to_string().into()),
        ("id", i64::from(query.id).into()),
        ("opcode", 0_i64.into()),
        ("do", query.dnssec_ok().into()),
        ("bufsize", (most as i64).into()),
        ("server_ip", ip(server).into()),
        ("server_port", server.port().to_string().into()),
    ];
    Facts::new(known, move |label| self::label(context, labels?, query, label))
}

/// The value of a label of the query.
pub(super) fn label(
    context: &QueryContext<'_>,
    labels: &dyn Labels,
    query: &Query<'_>,
    label: &str,
) -> Option<String> {
    labels.label(label, &query.name, Some(context.client().ip().to_canonical()))
}
