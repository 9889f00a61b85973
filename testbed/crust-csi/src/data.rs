//! What can be wrong in the data directory.

use crate::images::ImageError;
use crate::store::StoreError;

/// Something in the data directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// A volume's record.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A volume's image.
    #[error(transparent)]
    Image(#[from] ImageError),
}
