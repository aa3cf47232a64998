//! The routes, as data: what is mounted, documented and counted is this one list.

use axum::routing::MethodFilter;

macro_rules! routes {
    ($($name:ident $method:ident $path:literal $word:literal;)*) => {
        /// A call of the API.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Route {
            $(#[doc = concat!("`", stringify!($method), " ", $path, "`")] $name,)*
        }

        impl Route {
            /// Every route.
            pub const ALL: &'static [Route] = &[$(Route::$name,)*];

            /// The path with its parameters in braces.
            pub const fn path(self) -> &'static str {
                match self { $(Route::$name => $path,)* }
            }

            /// The method, in capitals.
            pub const fn method(self) -> &'static str {
                match self { $(Route::$name => stringify!($method),)* }
            }

            pub(crate) const fn filter(self) -> MethodFilter {
                match self { $(Route::$name => MethodFilter::$method,)* }
            }

            /// The word of the metrics and of the document's operation id.
            pub const fn word(self) -> &'static str {
                match self { $(Route::$name => $word,)* }
            }
        }
    };
}

routes! {
    PutItem PUT "/v1/items/{item}" "put_item";
    ListItems GET "/v1/items" "list_items";
    ReadItem GET "/v1/items/{item}" "read_item";
    DeleteItem DELETE "/v1/items/{item}" "delete_item";
    AdjustItem POST "/v1/items/{item}/adjustments" "adjust_item";
    PauseItem POST "/v1/items/{item}/pause" "pause_item";
    ResumeItem POST "/v1/items/{item}/resume" "resume_item";
    CloseItem POST "/v1/items/{item}/close" "close_item";
    Availability GET "/v1/items/{item}/availability" "read_availability";
    Audit GET "/v1/items/{item}/audit" "audit_item";
    ReadLayout GET "/v1/items/{item}/layout" "read_layout";
    PutLayout PUT "/v1/items/{item}/layout" "put_layout";
    ReadItemOperation GET "/v1/items/{item}/operations/{operation}" "read_item_operation";
    ListTransfers GET "/v1/items/{item}/transfers" "list_transfers";
    MoveStock POST "/v1/items/{item}/transfers" "move_stock";
    SoldOut GET "/v1/sold-out" "list_sold_out";
    PlaceHold POST "/v1/items/{item}/holds" "place_hold";
    ListHolds GET "/v1/holds" "list_holds";
    ReadHold GET "/v1/holds/{id}" "read_hold";
    ExtendHold POST "/v1/holds/{id}/extend" "extend_hold";
    ConfirmHold POST "/v1/holds/{id}/confirm" "confirm_hold";
    ReleaseHold POST "/v1/holds/{id}/release" "release_hold";
    ReturnHold POST "/v1/holds/{id}/return" "return_hold";
    BatchHolds POST "/v1/holds:batch" "batch_holds";
    ReadReceipt GET "/v1/receipts/{key}" "read_receipt";
    VoidKey POST "/v1/receipts/{key}/void" "void_key";
    Cluster GET "/admin/v1/cluster" "read_cluster";
    Digest GET "/admin/v1/digest" "read_digest";
    Adopt POST "/admin/v1/adopt" "adopt_node";
    Begin POST "/admin/v1/begin" "begin_cluster";
    ListNodes GET "/admin/v1/nodes" "list_nodes";
    AddNode POST "/admin/v1/nodes" "add_node";
    RemoveNode DELETE "/admin/v1/nodes/{id}" "remove_node";
    PromoteNode POST "/admin/v1/nodes/{id}/promote" "promote_node";
    DemoteNode POST "/admin/v1/nodes/{id}/demote" "demote_node";
    DrainNode POST "/admin/v1/nodes/{id}/drain" "drain_node";
    UndrainNode POST "/admin/v1/nodes/{id}/undrain" "undrain_node";
    ReplaceNode POST "/admin/v1/nodes/{id}/replace" "replace_node";
    Join POST "/admin/v1/join" "join_cluster";
    Upgrade POST "/admin/v1/cluster/upgrade" "upgrade_cluster";
    ListShards GET "/admin/v1/shards" "list_shards";
    MoveLeader POST "/admin/v1/shards/{shard}/leader" "move_leader";
    CheckpointShard POST "/admin/v1/shards/{shard}/checkpoint" "checkpoint_shard";
    ListOperations GET "/admin/v1/operations" "list_operations";
    ReadOperation GET "/admin/v1/operations/{id}" "read_operation";
    CancelOperation POST "/admin/v1/operations/{id}/cancel" "cancel_operation";
    Livez GET "/livez" "livez";
    Readyz GET "/readyz" "readyz";
    Metrics GET "/metrics" "metrics";
    Index GET "/" "index";
    ProblemIndex GET "/problems/" "list_problems";
    ProblemPage GET "/problems/{slug}" "read_problem";
    OpenApi GET "/openapi.json" "openapi";
}
