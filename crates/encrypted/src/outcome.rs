//! How requests end, for metrics.

/// The end of a request: a status of HTTP, or an error code of DNS over QUIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// 200: the body is the reply.
    Answered,
    /// 400: another method than GET and POST, or no message that could be answered.
    Malformed,
    /// 404: another path than `/dns-query`.
    OtherPath,
    /// 500: the server does not reply to this query.
    Silence,
    /// DOQ_NO_ERROR: the client has the reply.
    NoError,
    /// DOQ_INTERNAL_ERROR: the server does not reply to this query, or the client was too slow.
    InternalError,
    /// DOQ_PROTOCOL_ERROR: the client broke the protocol.
    ProtocolError,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 7] = [
        Self::Answered,
        Self::Malformed,
        Self::OtherPath,
        Self::Silence,
        Self::NoError,
        Self::InternalError,
        Self::ProtocolError,
    ];

    /// Returns the label `status` of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "200",
            Self::Malformed => "400",
            Self::OtherPath => "404",
            Self::Silence => "500",
            Self::NoError => "0x0",
            Self::InternalError => "0x1",
            Self::ProtocolError => "0x2",
        }
    }
}
