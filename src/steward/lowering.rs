//! Carrying a lowering of a total on: its units are gathered in bucket 0 by ordinary transfers, and
//! written off in one entry when they are there, or given back to sale when they cannot come.

use std::sync::Arc;
use std::time::Duration;

use crate::ledger::{Answer, BucketId, BucketRef, Command, ItemRef, LowerBegin, LowerEnd, UnixMs};
use crate::runtime;
use crate::shard::{Outcome, Question, Router};

/// How long one step may take.
const STEP_MAX: Duration = Duration::from_millis(500);

/// Carries a lowering on. Tells whether it went on.
pub(super) async fn carry_on(
    router: &Arc<Router>,
    item: ItemRef,
    begun: LowerBegin,
    earmarked: u64,
    needed: u64,
) -> bool {
    let LowerBegin { name, item: number, key, until, .. } = begun;
    let end = LowerEnd { name, item: number, key };
    if earmarked >= needed {
        return step(router, item, Command::LowerCommit(end)).await;
    }
    let bucket = BucketRef { home: item.home, item: item.item, bucket: BucketId(0) };
    let missing = needed - earmarked;
    let gathered = router.gather(bucket, missing, runtime::now() + STEP_MAX).await;
    if gathered.brought > 0 {
        return true;
    }
    // Less is free in all buckets together than is missing, or its time is over.
    let in_vain = gathered.left.is_some_and(|left| left < missing);
    let is_late = router.time_of(item.home) >= until && until > UnixMs(0);
    if in_vain || is_late {
        return step(router, item, Command::LowerAbort(end)).await;
    }
    false
}

async fn step(router: &Arc<Router>, item: ItemRef, command: Command) -> bool {
    let deadline = runtime::now() + STEP_MAX;
    let reply = router.ask_shard(item.home, Question::from(command), deadline).await;
    matches!(reply.outcome, Outcome::Answered(Answer::Item { .. }))
}
