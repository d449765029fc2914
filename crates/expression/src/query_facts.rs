//! Data of a query for expressions, with CoreDNS's values.

use std::net::SocketAddr;

use logging::metadata::Labels;
use plugin::QueryContext;
use plugin::hooks::ReplySize;
use wire::{Proto, Query};

use crate::{QueryData, Value};

/// A query as expressions see it.
pub struct QueryFacts<'q> {
    /// Client, transport and server.
    pub context: &'q QueryContext<'q>,
    /// The publisher of the query's labels, if the block has `metadata`.
    pub labels: Option<&'q dyn Labels>,
    /// The limit of replies that `bufsize()` applies.
    pub size: ReplySize,
    /// The query.
    pub query: &'q Query<'q>,
    /// The query's name in lower case, with the final dot.
    pub name: &'q str,
}

impl QueryData for QueryFacts<'_> {
    fn value(&self, function: &str) -> Value {
        let Self { context, size, query, .. } = *self;
        let ip = |address: SocketAddr| address.ip().to_canonical().to_string().into();
        match function {
            "type" => query.rtype.to_string().into(),
            "name" => self.name.into(),
            "class" => query.class.to_string().into(),
            "proto" => context.proto.label().into(),
            "size" => (query.size as i64).into(),
            "client_ip" => ip(context.client()),
            "port" => context.client().port().to_string().into(),
            "id" => i64::from(query.id).into(),
            "opcode" => i64::from(query.flags.opcode().0).into(),
            "do" => query.dnssec_ok().into(),
            // As in CoreDNS the client's size is limited for UDP only.
            "bufsize" => match context.proto {
                Proto::Udp | Proto::Quic => (size.displayed(query.udp_limit()) as i64).into(),
                Proto::Tcp => i64::from(u16::MAX).into(),
            },
            "server_ip" => ip(context.server()),
            "server_port" => context.server().port().to_string().into(),
            _ => Value::Nil,
        }
    }

    fn label(&self, label: &str) -> Option<String> {
        let client = self.context.client().ip().to_canonical();
        self.labels?.label(label, &self.query.name, Some(client))
    }
}
