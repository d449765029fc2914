//! A byte string that is stored inline if it is short: saves a cache line per lookup and an
//! allocation.

/// Longest inline string: fills a slot up to two cache lines.
const SHORT: usize = 62;

pub(crate) enum InlineBytes {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl InlineBytes {
    /// Creates a string of `size` bytes, written by `fill`.
    pub(crate) fn new(size: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        if size <= SHORT {
            let mut bytes = [0; SHORT];
            fill(&mut bytes[..size]);
            Self::Short(size as u8, bytes)
        } else {
            let mut bytes = vec![0; size].into_boxed_slice();
            fill(&mut bytes);
            Self::Long(bytes)
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short(size, bytes) => bytes.get(..usize::from(*size)).unwrap_or_default(),
            Self::Long(bytes) => bytes,
        }
    }

    /// Returns the bytes allocated outside of the value.
    pub(crate) fn outside(&self) -> usize {
        match self {
            Self::Short(..) => 0,
            Self::Long(bytes) => bytes.len(),
        }
    }
}
