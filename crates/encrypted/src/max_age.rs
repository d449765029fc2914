//! How long an HTTP cache may keep a reply (RFC 8484, section 5.1).

use wire::{Name, RType, Rcode, Records, Section};

/// Returns the lowest TTL of a reply in seconds, an hour at most; [`SHORT`] for failures, referrals
/// and replies without records, as in CoreDNS.
pub(crate) fn max_age(reply: &[u8]) -> u32 {
    lowest_ttl(reply).unwrap_or(SHORT)
}

fn lowest_ttl(reply: &[u8]) -> Option<u32> {
    let number = |at: usize| Some(u16::from_be_bytes([*reply.get(at)?, *reply.get(at + 1)?]));
    let mut start = HEADER;
    for _ in 0..number(4)? {
        start = Name::read(reply, start).ok()?.1 + 4;
    }
    let counts = [number(6)?, number(8)?, number(10)?];
    let (mut lowest, mut has_records, mut soa, mut ns) = (LONGEST, false, false, false);
    for record in Records::new(reply, start, counts) {
        let record = record.ok()?;
        if record.section == Section::Authority {
            soa |= record.rtype == RType::SOA;
            ns |= record.rtype == RType::NS;
        }
        if record.rtype != RType::OPT {
            has_records = true;
            lowest = lowest.min(record.ttl);
        }
    }
    let keeps = match Rcode(number(2)? & 0xf) {
        Rcode::NOERROR => counts[0] > 0 || soa || !ns,
        Rcode::NXDOMAIN => counts[0] == 0,
        _ => false,
    };
    (keeps && has_records).then_some(lowest)
}

/// Bytes of a message's header.
const HEADER: usize = 12;
/// Seconds for a reply whose records do not say how long it holds.
const SHORT: u32 = 5;
/// Seconds at most.
const LONGEST: u32 = 3600;

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of the root: its type and TTL.
    fn record(rtype: RType, ttl: u32) -> Vec<u8> {
        let mut octets = vec![0];
        octets.extend_from_slice(&rtype.0.to_be_bytes());
        octets.extend_from_slice(&[0, 1]);
        octets.extend_from_slice(&ttl.to_be_bytes());
        octets.extend_from_slice(&[0, 1, 0]);
        octets
    }

    #[test]
    fn lowest_ttl_counts() {
        let (a, soa, ns, opt) = (RType::A, RType::SOA, RType::NS, RType::OPT);
        type Sections<'s> = [&'s [(RType, u32)]; 3];
        let rows: &[(u8, Sections<'_>, u32)] = &[
            (0, [&[(a, 60), (a, 30)], &[], &[]], 30),
            (0, [&[(a, 60)], &[(ns, 20)], &[(a, 10)]], 10),
            (0, [&[(a, 60)], &[], &[(opt, 0)]], 60),
            (0, [&[(a, 0)], &[], &[]], 0),
            (0, [&[(a, 86_400)], &[], &[]], 3600),
            (0, [&[], &[(soa, 300)], &[]], 300),
            (0, [&[], &[(ns, 300)], &[]], SHORT),
            (0, [&[], &[], &[(opt, 0)]], SHORT),
            (0, [&[], &[], &[]], SHORT),
            (3, [&[], &[(soa, 300)], &[]], 300),
            (3, [&[(a, 60)], &[(soa, 300)], &[]], SHORT),
            (2, [&[(a, 60)], &[], &[]], SHORT),
        ];
        for (rcode, sections, expected) in rows {
            let mut reply = vec![0, 0, 0x80, *rcode, 0, 1];
            sections
                .iter()
                .for_each(|records| reply.extend_from_slice(&(records.len() as u16).to_be_bytes()));
            reply.extend_from_slice(b"\x01a\0\0\x01\0\x01");
            let records = sections.iter().copied().flatten();
            records.for_each(|&(rtype, ttl)| reply.extend_from_slice(&record(rtype, ttl)));
            assert_eq!(max_age(&reply), *expected, "{rcode} {sections:?}");
            // A reply that is cut is no reason to keep it long.
            for end in 0..reply.len() {
                assert!(max_age(&reply[..end]) <= SHORT.max(*expected), "{end}");
            }
        }
    }
}
