//! Which files the public ports' TLS goes by.

use lockstep_types::TlsFiles;

use super::ConfigError;
use crate::args::ServerArgs;

/// The files, absolute: processes open them again when they have changed.
pub(super) fn files(args: &ServerArgs) -> Result<Option<TlsFiles>, ConfigError> {
    const CERTIFICATE: &str = "--ssl-certfile";
    const KEY: &str = "--ssl-keyfile";
    const ROOTS: &str = "--ssl-ca-certs";
    let needs = |first, second| {
        let why = "TLS needs both a certificate and its key";
        Err(ConfigError::conflict(
            first,
            second,
            why,
            format!("Give {second} too"),
        ))
    };
    let (certificate, key) = match (&args.ssl_certfile, &args.ssl_keyfile) {
        (Some(certificate), Some(key)) => (certificate, key),
        (Some(_), None) => return needs(CERTIFICATE, KEY),
        (None, Some(_)) => return needs(KEY, CERTIFICATE),
        (None, None) if args.ssl_ca_certs.is_some() => return needs(ROOTS, CERTIFICATE),
        (None, None) => return Ok(None),
    };
    let absolute = |option, path: &std::path::PathBuf| {
        std::path::absolute(path).map_err(|error| ConfigError::File {
            option,
            path: path.clone(),
            message: error.to_string(),
        })
    };
    let roots = args.ssl_ca_certs.as_ref();
    Ok(Some(TlsFiles {
        certificate: absolute(CERTIFICATE, certificate)?,
        key: absolute(KEY, key)?,
        client_roots: roots.map(|roots| absolute(ROOTS, roots)).transpose()?,
    }))
}
