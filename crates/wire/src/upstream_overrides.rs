//! Header flags and EDNS options that the server adds to a query for upstreams.

use crate::edns::options;
use crate::{Flags, OPTION_CLIENT_SUBNET};

/// Changes to a query for upstreams alone: AA, RA, a cleared RD, EDNS options.
///
/// Part of the key in the cache and in the table of flights: queries that differ in it are
/// different queries. A client subnet among the options is also that of the query's EDNS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpstreamOverrides<'p>(pub(crate) &'p [u8]);

impl<'p> UpstreamOverrides<'p> {
    /// No changes.
    pub const NONE: Self = Self(&[]);

    /// RD was cleared by the server, whatever the client sent. Uses the bit of QR, which no query
    /// has.
    pub const NO_RD: u16 = Flags::QR;

    /// Wraps the bytes that [`UpstreamOverrides::encode`] returned.
    pub fn new(octets: &'p [u8]) -> Self {
        Self(octets)
    }

    /// Encodes flags, then options as in an OPT record; empty where there are neither.
    pub fn encode(flags: u16, options: &[u8]) -> Vec<u8> {
        let flags = flags & (Flags::AA | Flags::RA | Self::NO_RD);
        if flags == 0 && options.is_empty() {
            return Vec::new();
        }
        [&flags.to_be_bytes(), options].concat()
    }

    /// Whether there are no changes.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The encoded form, equal for equal changes.
    #[inline]
    pub fn octets(self) -> &'p [u8] {
        self.0
    }

    /// AA and RA.
    pub fn flags(self) -> u16 {
        self.word() & !Self::NO_RD
    }

    /// Whether the server cleared RD. Such an answer may be cached for all clients that the same
    /// rule applies to.
    pub fn clears_rd(self) -> bool {
        self.word() & Self::NO_RD != 0
    }

    /// Whether upstreams get flags or options that header and question of the query do not have.
    pub fn is_for_upstreams(self) -> bool {
        self.flags() != 0 || self.0.len() > FLAGS
    }

    fn word(self) -> u16 {
        self.0.first_chunk::<FLAGS>().map_or(0, |flags| u16::from_be_bytes(*flags))
    }

    /// The options: code and value.
    pub fn options(self) -> impl Iterator<Item = (u16, &'p [u8])> {
        options(self.0.get(FLAGS..).unwrap_or_default()).flatten()
    }

    /// Whether there is a client subnet among the options.
    pub fn has_subnet(self) -> bool {
        self.options().any(|(code, _)| code == OPTION_CLIENT_SUBNET)
    }

    /// The encoded form without client subnets.
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

/// Appends one option as in an OPT record; `value` has at most 65,535 bytes.
pub fn push_option(options: &mut Vec<u8>, code: u16, value: &[u8]) {
    options.extend_from_slice(&code.to_be_bytes());
    options.extend_from_slice(&(value.len() as u16).to_be_bytes());
    options.extend_from_slice(value);
}

/// Bytes of the flags in the encoded form.
pub(crate) const FLAGS: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HEADER, Query, Verdict, accept, write_upstream_query};

    const PACKET: &[u8] =
        b"\0\x07\x01\0\0\x01\0\0\0\0\0\x01\x01a\x03org\0\0\x01\0\x01\0\0\x29\x04\xd0\0\0\x80\0\0\x0b\0\x08\0\x07\0\x01\x18\0\xc0\0\x02";
    const SUBNET: &[u8] = &[0, 1, 16, 0, 192, 0];

    /// Header flags and options of the query that an upstream gets.
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

    /// Also after the query was copied out of its packet.
    #[test]
    fn overrides_reach_the_upstream() {
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
        // Overrides stay, for the answer is cached under them; the client's own subnet does not.
        assert_eq!(sent(&held.clone().without_client_subnet().query()), expected);
        assert_eq!(sent(&query.owned().without_client_subnet().query()).1, []);
        let bare = held.without_subnet();
        assert_eq!(sent(&bare.query()), (0x0520, vec![local, (3, vec![])]));
        assert!(!bare.query().overrides.has_subnet() && bare.query().edns.unwrap().client_subnet.is_none());
    }

    #[test]
    fn no_overrides_encode_to_nothing() {
        assert_eq!(UpstreamOverrides::encode(Flags::RD, &[]), []);
        let Verdict::Pass(query) = accept(PACKET) else { panic!("refused") };
        assert!(query.overrides.is_empty() && query.owned().query().overrides.is_empty());
        assert_eq!(UpstreamOverrides::NONE.flags(), 0);
    }

    /// It is not sent as a flag.
    #[test]
    fn cleared_rd_changes_the_key() {
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
