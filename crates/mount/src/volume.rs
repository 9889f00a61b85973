//! A staged volume's life: staged, mounted in a sandbox, handed to containers, released, unstaged.
//!
//! The rooms beside this one know how to mount; here it is decided whether, and written down who
//! has what. Locks are taken in the order bundle, volume, device, owners, targets; those of the paths of one volume in
//! the order of their digests.

mod acquire;
mod admission;
mod claim;
mod context;
mod difference;
mod disk;
mod ensure;
mod error;
mod find;
mod health;
mod index;
mod inspect;
mod instance;
mod late;
mod mounted;
mod outlook;
mod overview;
mod own;
mod owners;
mod plan;
mod reconcile;
mod release;
mod resize;
mod shown;
mod stage;
mod stats;
mod users;

pub use admission::{Denied, Room, admit};
pub use context::{Context, Locked, lock};
pub use difference::differences;
pub use ensure::{Host, ensure, views};
pub use error::{Code, VolumeError};
pub use find::{FindError, Wanted, find, wanted};
pub use health::{Condition, Look, look_over};
pub use inspect::{BlockDevice, Inspection, SeenUser, inspect};
pub use late::stage_mounted;
pub use outlook::{Access, Of, Outlook, outlook};
pub use overview::{Overview, State, overviews};
pub use own::{instantiate, mount_reserved, reserve};
pub use plan::{Need, needs};
pub use reconcile::{Finding, Mode, Report, SweepError, Thing, reconcile, sweep};
pub use release::{release, release_sandbox};
pub use resize::resize;
pub use stage::{stage, stage_at_once, unstage};
pub use stats::{Stats, stats};
pub use users::{NewContainer, begin, check_host, has_device, publish, withdraw};
