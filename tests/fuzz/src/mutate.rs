//! Plain mutations, for runs without a coverage-guided fuzzer.

/// Mutates bytes, deterministically by seed.
#[derive(Clone, Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// A mutator with its seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed | 1 }
    }

    /// Applies a few changes: sets, inserts, removes or repeats bytes, or inserts a piece of
    /// another input.
    pub fn change(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(6) {
                0 => {
                    if let Some(octet) = bytes.get_mut(at) {
                        *octet ^= 1 << self.below(8);
                    }
                }
                1 => {
                    let octet = ODD[self.below(ODD.len())];
                    bytes.insert(at, octet);
                }
                2 => {
                    let end = (at + self.below(8)).min(bytes.len());
                    bytes.drain(at..end);
                }
                3 => {
                    if let Some(octet) = bytes.get_mut(at) {
                        *octet = ODD[self.below(ODD.len())];
                    }
                }
                4 => {
                    let from = self.below(other.len() + 1);
                    let piece = &other[from..(from + self.below(32)).min(other.len())];
                    bytes.splice(at..at, piece.iter().copied());
                }
                _ => {
                    let end = (at + self.below(24)).min(bytes.len());
                    let again = bytes[at..end].to_vec();
                    bytes.splice(at..at, again);
                }
            }
        }
        bytes.truncate(MAX_INPUT);
        bytes
    }

    /// A number below `bound`, which must not be 0 (xorshift).
    pub fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as usize % bound
    }
}

/// Bytes that break parsers: limits, signs, pointers, label lengths, separators.
const ODD: [u8; 20] = [
    0, 1, 0x0c, 0x29, 0x3f, 0x40, 0x7f, 0x80, 0xc0, 0xff, b' ', b'\n', b'\r', b'{', b'}', b'"', b'#', b'.',
    b'\\', b'$',
];
const MAX_INPUT: usize = 8192;
