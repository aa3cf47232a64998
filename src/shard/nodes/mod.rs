//! The nodes of the cluster and what operators want to become of them: reports, preflight, plans,
//! orders, and the admission of new machines. What happens then is the steward's business.

mod admit;
mod errand;
mod operation;
mod order;
mod preflight;
mod progress;
mod report;
mod token;
mod upgrade;

pub use admit::{Admission, Claim};
pub(crate) use admit::{expire, forget_the_gone};
pub(crate) use errand::{ERRAND_FRAME, removed_words};
pub use errand::{Lobby, Standing, spec, standing};
pub use order::{Order, Ordered, Rejected, Ruling};
pub(crate) use preflight::may_take_its_turn;
pub use preflight::{Plan, Rule, kind_word, plan};
pub use progress::{StepView, enter, next_step, progress, standing_of, step_words, steps_of};
pub use report::{NodeReport, ReplicaReport, Sight, quorum};
pub use token::token_of;
