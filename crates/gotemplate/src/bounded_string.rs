//! A bounded output text.

use crate::MAX_OUTPUT_BYTES;
use crate::errors::RenderError;

/// A writer that appends to a text, at most [`MAX_OUTPUT_BYTES`] in total.
pub(crate) struct Sink<'o> {
    text: &'o mut String,
    end: usize,
}

impl<'o> Sink<'o> {
    pub(crate) fn new(text: &'o mut String) -> Self {
        let end = text.len().saturating_add(MAX_OUTPUT_BYTES);
        Self { text, end }
    }

    pub(crate) fn push_str(&mut self, piece: &str) -> Result<(), RenderError> {
        self.reserve(piece.len())?;
        self.text.push_str(piece);
        Ok(())
    }

    pub(crate) fn push(&mut self, character: char) -> Result<(), RenderError> {
        self.reserve(character.len_utf8())?;
        self.text.push(character);
        Ok(())
    }

    /// Appends an ASCII `character` `times` times.
    pub(crate) fn repeat(&mut self, character: char, times: usize) -> Result<(), RenderError> {
        self.reserve(times)?;
        self.text.extend(std::iter::repeat_n(character, times));
        Ok(())
    }

    fn reserve(&self, length: usize) -> Result<(), RenderError> {
        let fits = self.text.len().checked_add(length).is_some_and(|total| total <= self.end);
        if fits { Ok(()) } else { Err(RenderError::OutputTooLong) }
    }
}
