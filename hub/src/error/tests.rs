use std::path::Path;

use super::*;

#[test]
fn a_disk_that_fills_up_is_no_folder_that_can_not_be_written() {
    for (kind, full) in [
        (io::ErrorKind::StorageFull, true),
        (io::ErrorKind::QuotaExceeded, true),
        (io::ErrorKind::PermissionDenied, false),
    ] {
        let error = HubError::cache(Path::new("/cache"))(kind.into());
        assert_eq!(matches!(error, HubError::Full { .. }), full, "{error}");
        assert_eq!(error.to_string().contains("Free some space"), full);
        assert!(error.to_string().contains("HF_HUB_CACHE"), "{error}");
        assert!(!error.is_usage() && !error.is_borne(), "{error}");
    }
}
