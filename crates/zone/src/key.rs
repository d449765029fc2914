//! Names below an origin as byte strings that compare in canonical order (RFC 4034, section 6.1).

/// A name relative to its zone: labels from the right, lower-cased, each followed by 0. In labels, 0
/// is written as 1 1, and 1 as 1 2. A name is below another if its key begins with that of the other.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    len: u16,
    octets: [u8; MOST],
}

impl Key {
    pub(crate) const APEX: Self = Self { len: 0, octets: [0; MOST] };

    /// The key of a name in wire form, `None` if it is not within the origin, which is lower-cased.
    pub(crate) fn new(name: &[u8], origin: &[u8]) -> Option<Self> {
        // Offsets of the labels before the origin's.
        let (mut labels, mut count) = ([0_u8; 128], 0);
        let end = name.len().checked_sub(origin.len())?;
        let mut at = 0;
        while at < end {
            labels[count] = at as u8;
            count += 1;
            at += 1 + usize::from(name[at]);
        }
        if at != end || !name[end..].eq_ignore_ascii_case(origin) {
            return None;
        }
        let mut key = Self::APEX;
        for &at in labels[..count].iter().rev() {
            let at = usize::from(at);
            key.push(&name[at + 1..at + 1 + usize::from(name[at])]);
        }
        Some(key)
    }

    /// The name with this label in front.
    pub(crate) fn child(of: &[u8], label: &[u8]) -> Self {
        let mut key = Self::APEX;
        key.octets[..of.len()].copy_from_slice(of);
        key.len = of.len() as u16;
        key.push(label);
        key
    }

    fn push(&mut self, label: &[u8]) {
        let mut len = usize::from(self.len);
        for byte in label.iter().map(u8::to_ascii_lowercase) {
            if byte <= 1 {
                self.octets[len] = 1;
                len += 1;
            }
            self.octets[len] = if byte <= 1 { byte + 1 } else { byte };
            len += 1;
        }
        self.octets[len] = 0;
        self.len = len as u16 + 1;
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.octets[..usize::from(self.len)]
    }
}

/// Appends the name of a key in wire form.
pub(crate) fn write_name(key: &[u8], origin: &[u8], out: &mut Vec<u8>) {
    for label in key.rsplit(|&byte| byte == 0).filter(|label| !label.is_empty()) {
        let start = out.len();
        out.push(0);
        let mut bytes = label.iter();
        while let Some(&byte) = bytes.next() {
            out.push(if byte == 1 { bytes.next().map_or(0, |byte| byte - 1) } else { byte });
        }
        out[start] = (out.len() - start - 1) as u8;
    }
    out.extend_from_slice(origin);
}

/// The length of the longest key that both are within.
pub(crate) fn common(one: &[u8], other: &[u8]) -> usize {
    let equal = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    one[..equal].iter().rposition(|&byte| byte == 0).map_or(0, |end| end + 1)
}

/// The length of the key of the name above this one; the apex has none above it.
pub(crate) fn parent(key: &[u8]) -> usize {
    let labels = key.split_last().map_or(&[][..], |(_, labels)| labels);
    labels.iter().rposition(|&byte| byte == 0).map_or(0, |end| end + 1)
}

/// The key of the name that is one label below the first `above` bytes of this key, on the way to it.
pub(crate) fn child_towards(key: &[u8], above: usize) -> &[u8] {
    let end = key[above..].iter().position(|&byte| byte == 0);
    &key[..end.map_or(key.len(), |end| above + end + 1)]
}

/// Every byte of a name escaped, and one byte more for each label but its length.
const MOST: usize = 2 * wire::MAX_NAME + 2;
