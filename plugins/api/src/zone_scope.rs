//! For which names a directive is, where its block has names of others, too.

use wire::Name;

/// The zones of a directive, as the names of queries are compared with them.
///
/// Most directives are for the zones of their block, and every name that comes is within those. That is seen when the block is
/// built ([`crate::spec::BuildContext::scope`]), and then nothing is compared.
#[derive(Debug, Clone)]
pub struct Scope(Option<Box<[Name]>>);

impl Scope {
    /// Every name that comes.
    pub const ALL: Self = Self(None);

    /// Names within these zones.
    pub fn within(zones: &[Name]) -> Self {
        Self(Some(zones.into()))
    }

    /// Whether every name that comes is held.
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the directive is for this name.
    #[inline]
    pub fn holds(&self, name: &Name) -> bool {
        self.0.as_ref().is_none_or(|zones| zones.iter().any(|zone| name.is_within(zone)))
    }
}
