//! What was written into a query for upstreams: header flags and EDNS options that the client did not send.

use crate::edns::options;
use crate::{Flags, OPTION_CLIENT_SUBNET};

/// AA and RA, that RD was cleared, and EDNS options, for upstreams. Queries that differ in it are different queries: to the cache, to those in
/// flight, to an upstream.
///
/// A client subnet among the options is also that of the query's EDNS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpstreamOverrides<'p>(pub(crate) &'p [u8]);

impl<'p> UpstreamOverrides<'p> {
    /// Nothing.
    pub const NONE: Self = Self(&[]);

    /// Among the flags, in the place of QR, which no query has: RD was cleared here, whatever the client sent.
    pub const NO_RD: u16 = Flags::QR;

    /// As [`UpstreamOverrides::encode`] made it.
    pub fn new(octets: &'p [u8]) -> Self {
        Self(octets)
    }

    /// Flags, then options as they stand in an OPT record, as octets; none at all for nothing.
    pub fn encode(flags: u16, options: &[u8]) -> Vec<u8> {
        let flags = flags & (Flags::AA | Flags::RA | Self::NO_RD);
        if flags == 0 && options.is_empty() {
            return Vec::new();
        }
        [&flags.to_be_bytes(), options].concat()
    }

    /// Whether there is nothing.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// All of it: what equal queries have in common.
    #[inline]
    pub fn octets(self) -> &'p [u8] {
        self.0
    }

    /// AA and RA.
    pub fn flags(self) -> u16 {
        self.word() & !Self::NO_RD
    }

    /// Whether RD was cleared here: what upstreams say then is for all who ask by the same rule.
    pub fn clears_rd(self) -> bool {
        self.word() & Self::NO_RD != 0
    }

    /// Whether there is something that a query's own header and question do not say.
    pub fn is_for_upstreams(self) -> bool {
        self.flags() != 0 || self.0.len() > FLAGS
    }

    fn word(self) -> u16 {
        self.0.first_chunk::<FLAGS>().map_or(0, |flags| u16::from_be_bytes(*flags))
    }

    /// The options, each with its code.
    pub fn options(self) -> impl Iterator<Item = (u16, &'p [u8])> {
        options(self.0.get(FLAGS..).unwrap_or_default()).flatten()
    }

    /// Whether a client subnet is among them.
    pub fn has_subnet(self) -> bool {
        self.options().any(|(code, _)| code == OPTION_CLIENT_SUBNET)
    }

    /// The same without client subnet.
    pub(crate) fn without_subnet(self) -> Vec<u8> {
        let mut rest = Vec::new();
        for (code, value) in self.options().filter(|(code, _)| *code != OPTION_CLIENT_SUBNET) {
            push_option(&mut rest, code, value);
        }
        let mut octets = self.word().to_be_bytes().to_vec();
        octets.append(&mut rest);
        octets
    }
}

/// Appends one option as it stands in an OPT record; `value` has at most 65,535 octets.
pub fn push_option(options: &mut Vec<u8>, code: u16, value: &[u8]) {
    options.extend_from_slice(&code.to_be_bytes());
    options.extend_from_slice(&(value.len() as u16).to_be_bytes());
    options.extend_from_slice(value);
}

/// Octets that the flags take.
pub(crate) const FLAGS: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HEADER, Query, Verdict, accept, write_upstream_query};

    const PACKET: &[u8] =
        b"\0\x07\x01\0\0\x01\0\0\0\0\0\x01\x01a\x03org\0\0\x01\0\x01\0\0\x29\x04\xd0\0\0\x80\0\0\x0b\0\x08\0\x07\0\x01\x18\0\xc0\0\x02";
    const SUBNET: &[u8] = &[0, 1, 16, 0, 192, 0];

    /// Header flags, and the options of the OPT that an upstream gets.
    fn sent(query: &Query<'_>) -> (u16, Vec<(u16, Vec<u8>)>) {
        let mut out = Vec::new();
        write_upstream_query(&mut out, 7, query);
        let flags = u16::from_be_bytes([out[2], out[3]]);
        let data = &out[HEADER + query.question.len() + 11..];
        let length = HEADER + query.question.len() + 9;
        assert_eq!(usize::from(u16::from_be_bytes([out[length], out[length + 1]])), data.len());
        (
            flags,
            options(data).map(|option| option.map(|(code, value)| (code, value.to_vec())).unwrap()).collect(),
        )
    }

    #[test]
    fn what_is_written_goes_to_the_upstream_and_survives_being_held() {
        let Verdict::Pass(query) = accept(PACKET) else { panic!("refused") };
        let own = vec![0, 1, 24, 0, 192, 0, 2];
        assert_eq!(sent(&query), (0x0120, vec![(8, own)]));
        let mut options = Vec::new();
        push_option(&mut options, 0xffee, b"abcd");
        push_option(&mut options, 8, SUBNET);
        push_option(&mut options, 3, b"");
        let octets = UpstreamOverrides::encode(Flags::AA | Flags::RD, &options);
        let mut edns = query.edns;
        edns.as_mut().unwrap().client_subnet = Some(SUBNET);
        let local = (0xffee, b"abcd".to_vec());
        let with = Query { overrides: UpstreamOverrides::new(&octets), edns, ..query };
        let expected = (0x0520, vec![local.clone(), (3, vec![]), (8, SUBNET.to_vec())]);
        assert_eq!(sent(&with), expected);
        let held = with.owned();
        assert_eq!((sent(&held.query()), held.query().overrides), (expected.clone(), with.overrides));
        assert_eq!(held.question(), query.question);
        // A prefetch is for all who come by the same rule; a client's own subnet is for nobody else.
        assert_eq!(sent(&held.clone().without_client_subnet().query()), expected);
        assert_eq!(sent(&query.owned().without_client_subnet().query()).1, []);
        let bare = held.without_subnet();
        assert_eq!(sent(&bare.query()), (0x0520, vec![local, (3, vec![])]));
        assert!(!bare.query().overrides.has_subnet() && bare.query().edns.unwrap().client_subnet.is_none());
    }

    #[test]
    fn nothing_written_is_nothing() {
        assert_eq!(UpstreamOverrides::encode(Flags::RD, &[]), []);
        let Verdict::Pass(query) = accept(PACKET) else { panic!("refused") };
        assert!(query.overrides.is_empty() && query.owned().query().overrides.is_empty());
        assert_eq!(UpstreamOverrides::NONE.flags(), 0);
    }

    #[test]
    fn a_cleared_rd_makes_another_query_and_is_sent_as_no_flag() {
        let Verdict::Pass(query) = accept(PACKET) else { panic!("refused") };
        let mut options = Vec::new();
        push_option(&mut options, 8, SUBNET);
        for options in [&[][..], &options] {
            let octets = UpstreamOverrides::encode(Flags::RD | UpstreamOverrides::NO_RD, options);
            let with = Query { overrides: UpstreamOverrides::new(&octets), flags: Flags(0), ..query };
            assert!(
                with.overrides.clears_rd()
                    && with.overrides.flags() == 0
                    && with.overrides != query.overrides
            );
            assert_eq!(sent(&with).0, Flags::AD);
            assert_eq!(with.overrides.is_for_upstreams(), !options.is_empty());
            let held = with.owned().without_subnet();
            assert!(held.query().overrides.clears_rd() && !held.query().overrides.has_subnet());
        }
        assert!(!query.overrides.clears_rd() && !query.overrides.is_for_upstreams());
    }
}
