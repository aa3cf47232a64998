//! The forms in which a placement comes, and what names a command among those of its kind.
//!
//! Promises: every form of a command has one encoding and one scope. Never copies a text.

use serde::{Deserialize, Serialize};

use super::command::{CommandOf, KeyScope, Place};
use super::hold::HoldId;
use super::ids::NameRef;

/// A [`Place`] that borrows its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRef<'a> {
    /// The item.
    #[serde(borrow)]
    pub name: NameRef<'a>,
    /// See [`Place::region`].
    pub region: Option<&'a str>,
    /// See [`Place::buyer`].
    pub buyer: Option<&'a str>,
    /// The idempotency key.
    pub key: &'a str,
    /// Units, 1 … [`super::QUANTITY_MAX`].
    pub quantity: u64,
    /// Lifetime in ms; the item's default when absent.
    pub ttl_ms: Option<u64>,
    /// The caller's own reference, ≤ 128 bytes.
    pub reference: Option<&'a str>,
}

/// A form in which a placement comes.
pub trait Placement {
    /// Returns what was asked.
    fn asked(&self) -> PlaceRef<'_>;
}

impl Placement for Place {
    fn asked(&self) -> PlaceRef<'_> {
        PlaceRef {
            name: self.name.borrowed(),
            region: self.region.as_deref(),
            buyer: self.buyer.as_deref(),
            key: &self.key,
            quantity: self.quantity,
            ttl_ms: self.ttl_ms,
            reference: self.reference.as_deref(),
        }
    }
}

impl Placement for PlaceRef<'_> {
    fn asked(&self) -> PlaceRef<'_> {
        *self
    }
}

/// A [`KeyScope`] that borrows its texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopeRef<'a> {
    /// The item.
    pub name: NameRef<'a>,
    /// See [`KeyScope::region`].
    pub region: Option<&'a str>,
    /// See [`KeyScope::buyer`].
    pub buyer: Option<&'a str>,
    /// The key.
    pub key: &'a str,
}

impl KeyScope {
    /// Borrows it.
    pub fn borrowed(&self) -> ScopeRef<'_> {
        ScopeRef {
            name: self.name.borrowed(),
            region: self.region.as_deref(),
            buyer: self.buyer.as_deref(),
            key: &self.key,
        }
    }
}

impl ScopeRef<'_> {
    /// Copies it.
    pub fn owned(&self) -> KeyScope {
        KeyScope {
            name: self.name.owned(),
            region: self.region.map(str::to_owned),
            buyer: self.buyer.map(str::to_owned),
            key: self.key.to_owned(),
        }
    }
}

/// What names a command among those of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// A placing key: a placement's, or one to be voided.
    Placing(ScopeRef<'a>),
    /// A key of a hold's transitions.
    Hold {
        /// The hold.
        hold: &'a HoldId,
        /// The key.
        key: &'a str,
    },
    /// A key of an item's adjustments.
    Adjustment {
        /// The item.
        name: NameRef<'a>,
        /// The key.
        key: &'a str,
    },
    /// The item: one such change at a time.
    Item(NameRef<'a>),
    /// Nothing: a second copy is answered by state.
    State,
}

impl<P: Placement> CommandOf<P> {
    /// Returns what names it among commands of its kind.
    pub fn scope(&self) -> Scope<'_> {
        match self {
            CommandOf::Place(place) => {
                let PlaceRef { name, region, buyer, key, .. } = place.asked();
                Scope::Placing(ScopeRef { name, region, buyer, key })
            }
            CommandOf::Void(void) => Scope::Placing(void.scope.borrowed()),
            CommandOf::Extend(op) => Scope::Hold { hold: &op.hold, key: &op.key },
            CommandOf::Confirm(op) => Scope::Hold { hold: &op.hold, key: &op.key },
            CommandOf::Release(op) => Scope::Hold { hold: &op.hold, key: &op.key },
            CommandOf::Return(op) => Scope::Hold { hold: &op.hold, key: &op.key },
            CommandOf::Adjust(op) => Scope::Adjustment { name: op.name.borrowed(), key: &op.key },
            CommandOf::Define(define) => Scope::Item(define.name.borrowed()),
            CommandOf::SetMode(mode) => Scope::Item(mode.name.borrowed()),
            CommandOf::Retire(retire) => Scope::Item(retire.name.borrowed()),
            CommandOf::Advance
            | CommandOf::OpenBucket(_)
            | CommandOf::SendStock(_)
            | CommandOf::AcceptStock(_)
            | CommandOf::SettleStock(_)
            | CommandOf::DefineSpread(_)
            | CommandOf::SetLayout(_)
            | CommandOf::Configure(_)
            | CommandOf::CopyAnswered(_)
            | CommandOf::EraseCopy(_)
            | CommandOf::LowerBegin(_)
            | CommandOf::LowerCommit(_)
            | CommandOf::LowerAbort(_)
            | CommandOf::DeleteBegin(_)
            | CommandOf::DeleteAbort(_)
            | CommandOf::DeleteCommit(_)
            | CommandOf::MoveStock(_)
            | CommandOf::SetRoster(_)
            | CommandOf::SetSchema(_) => Scope::State,
        }
    }

    /// Gives its placement another form.
    pub fn map_place<Q>(self, form: impl FnOnce(P) -> Q) -> CommandOf<Q> {
        use CommandOf as C;
        match self {
            C::Place(place) => C::Place(form(place)),
            C::Define(define) => C::Define(define),
            C::Adjust(adjust) => C::Adjust(adjust),
            C::SetMode(mode) => C::SetMode(mode),
            C::Retire(retire) => C::Retire(retire),
            C::Extend(extend) => C::Extend(extend),
            C::Confirm(confirm) => C::Confirm(confirm),
            C::Release(release) => C::Release(release),
            C::Return(returned) => C::Return(returned),
            C::Void(void) => C::Void(void),
            C::Advance => C::Advance,
            C::OpenBucket(open) => C::OpenBucket(open),
            C::SendStock(send) => C::SendStock(send),
            C::AcceptStock(accept) => C::AcceptStock(accept),
            C::SettleStock(settle) => C::SettleStock(settle),
            C::DefineSpread(spread) => C::DefineSpread(spread),
            C::SetLayout(layout) => C::SetLayout(layout),
            C::Configure(configure) => C::Configure(configure),
            C::CopyAnswered(answered) => C::CopyAnswered(answered),
            C::EraseCopy(erase) => C::EraseCopy(erase),
            C::LowerBegin(lower) => C::LowerBegin(lower),
            C::LowerCommit(lower) => C::LowerCommit(lower),
            C::LowerAbort(lower) => C::LowerAbort(lower),
            C::DeleteBegin(delete) => C::DeleteBegin(delete),
            C::DeleteAbort(delete) => C::DeleteAbort(delete),
            C::DeleteCommit(delete) => C::DeleteCommit(delete),
            C::MoveStock(send) => C::MoveStock(send),
            C::SetRoster(set) => C::SetRoster(set),
            C::SetSchema(set) => C::SetSchema(set),
        }
    }

    /// Tells whether it places a hold.
    pub fn is_place(&self) -> bool {
        matches!(self, CommandOf::Place(_))
    }

    /// Returns what a placement asks; `None` of any other command.
    pub fn placing(&self) -> Option<PlaceRef<'_>> {
        if let CommandOf::Place(place) = self { Some(place.asked()) } else { None }
    }

    /// Tells whether a second copy of it is answered by what the first has left: it has a key. What
    /// a second copy of any other is told may be the first one's effect.
    pub fn is_keyed(&self) -> bool {
        match self.scope() {
            Scope::Placing(_) | Scope::Hold { .. } | Scope::Adjustment { .. } => true,
            Scope::Item(_) | Scope::State => false,
        }
    }
}
