//! The wrong readings of the protocol, each of which once lost or doubled a unit, told a buyer what
//! was not so, or went on for ever. A machine takes one and must then find its fault.

/// One wrong rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Trap {
    /// Parcels by sequence; the receiver remembers the highest that it has seen.
    HighestSequenceSeen,
    /// A parcel is refused by a read that is not logged, and the donor takes it back.
    RefusalNotLogged,
    /// The donor takes a parcel back after a while.
    TakeBackByTimeout,
    /// A settle that does not say how much: all that was sent.
    SettleWithoutHowMuch,
    /// A sequence chosen when the send is proposed: two leaders, one number.
    SequenceChosenAtProposal,
    /// The receiver's counters start again with its leader.
    CountersStartAgainWithLeader,
    /// The receiver's counters are forgotten when its bucket closes.
    CountersForgottenAtClose,
    /// A bucket's number is used again by another one.
    BucketNumberUsedAgain,
    /// The message leaves when the send is proposed, and the entry dies.
    SentAtProposal,
    /// The message carries the difference.
    MessageCarriesDifference,
    /// A pull that does not name R drains the donor as often as it is delivered: no unit is lost,
    /// but the bound on what is in transit is all that holds it.
    PullWithoutCounter,
    /// The total is lowered first, the units gathered later.
    TotalLoweredFirst,
    /// A copy takes any image, whatever its revision.
    ModeWithoutRevision,
    /// An answer to one revision counts for another.
    AnswerForAnotherRevision,
    /// Messages that do not name the life of the item.
    MessageWithoutItemNumber,
    /// The collector compares transfer counters instead of credits.
    CollectOverTransferCounters,
    /// The collector reads once.
    OneRoundOfZeros,
    /// A request uses a collect that began before it came.
    JoiningARunningCollect,
    /// Credits kept in the leader's memory start again with the leader.
    CreditsInMemory,
    /// Due holds are not counted as free.
    DueHoldsLeftOut,
    /// The collector does not ask bucket 0.
    BucketZeroLeftOut,
    /// The collector does not look at what is in transit.
    InTransitLeftOut,
    /// An answer of the first round is taken for one of the second.
    AnswerOfAnotherRound,
    /// The audit adds what donors call in transit.
    AuditByDonorsCounters,
    /// Stock moves within its region without its share of the floor: who gave it has less to keep,
    /// and who got it has none, so that both lend it.
    FloorLentTwice,
    /// An old image is taken again: a floor that was taken back is granted once more.
    FloorGrantedByAnOldImage,
    /// A region that closes is erased, with the stock that is still in it.
    StockOfClosedRegionLost,
    /// What arrives at a closed region is thrown away, and told as accepted.
    LateTransferToClosedRegion,
    /// A deletion passes over a copy that has never answered: one of a region just opened.
    CopyThatNeverAnsweredPassedOver,
    /// The collector does not ask the buckets of closed regions.
    ClosedRegionsLeftOut,
    /// The collector does not count a floor that is lifted as a credit.
    LiftedFloorIsNoCredit,
    /// A refusal on what is available less what is in flight.
    RefusalOnInFlight,
    /// A new leader refuses before it has applied an entry of its own.
    RefusalBeforeOwnEntry,
    /// A client takes the refusal of a retry for the end of its operation.
    RefusalEndsTheOperation,
    /// Donors give all that they have to whoever asks.
    DonorsGiveAll,
    /// Donors keep everything for their own waiters, whether that serves them or not.
    DonorsKeepForTheirOwn,
}
