//! What makes two queries one flight, as a number.

use forwarder::{Ask, Transport};
use wire::Query;

use super::flights::FlightRegistry;
use crate::house::Block;

impl FlightRegistry {
    /// The hash of a query of that block: equal where a forwarder would let it join the other's flight.
    pub fn key(&self, block: &Block, query: &Query<'_>, client: Transport) -> u64 {
        let Some(dial) = block.pipeline.dial() else { return 0 };
        let chain = &dial.chain;
        let ask = Ask { chain, query, client, block: block.id, context: 0, patience: None, asker: 0 };
        ask.fingerprint(&self.hasher).unwrap_or_default()
    }
}
