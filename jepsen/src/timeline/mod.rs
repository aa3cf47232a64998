//! The picture of a run.

use crate::history::History;
use crate::verdict::Judgement;

/// Draws a history.
pub(crate) fn draw(_history: &History, _judgement: Option<&Judgement>) -> String {
    String::new()
}
