//! How requests end, for metrics.

/// The end of a request: the status of its response.
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
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Answered, Self::Malformed, Self::OtherPath, Self::Silence];

    /// Returns the label `status` of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "200",
            Self::Malformed => "400",
            Self::OtherPath => "404",
            Self::Silence => "500",
        }
    }
}
