//! Where NVIDIA's compiler library may be.

use std::path::{Path, PathBuf};

use lode_kernels::cuda::NVRTC_FILES;

use crate::python::active_packages;

/// Folders of Python's packages `nvidia-cuda-nvrtc-cu12` (CUDA 12) and `nvidia-cuda-nvrtc` (CUDA 13).
const PACKAGE_FOLDERS: [&str; 2] = ["nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib"];
/// The folder of NVIDIA's own packages, which the system does not always know.
const TOOLKIT_FOLDER: &str = "/usr/local/cuda/lib64";

/// The files to try, in this order: those of `folder` alone if the operator named one. Otherwise those of the
/// active virtual environment, those that the system finds by name, and those of a toolkit.
pub fn nvrtc_files(folder: Option<&Path>) -> Vec<PathBuf> {
    if let Some(folder) = folder {
        return NVRTC_FILES.map(|file| folder.join(file)).into();
    }
    let mut files: Vec<PathBuf> =
        active_packages().iter().flat_map(|packages| files_of_packages(packages)).collect();
    files.extend(NVRTC_FILES.map(PathBuf::from));
    files.extend(NVRTC_FILES.map(|file| Path::new(TOOLKIT_FOLDER).join(file)));
    files
}

/// The files in a folder of Python packages.
fn files_of_packages(packages: &Path) -> Vec<PathBuf> {
    let folders = PACKAGE_FOLDERS.map(|folder| packages.join(folder));
    let files = folders.iter().flat_map(|folder| NVRTC_FILES.map(|file| folder.join(file)));
    files.filter(|file| file.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_packages_are_found() {
        let packages = tempfile::tempdir().unwrap();
        let nvidia = packages.path().join("nvidia");
        for path in ["cuda_nvrtc/lib/libnvrtc.so.12", "cu13/lib/libnvrtc.so.13", "x.so.12"] {
            let path = nvidia.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let expect = [nvidia.join("cuda_nvrtc/lib/libnvrtc.so.12"), nvidia.join("cu13/lib/libnvrtc.so.13")];
        assert_eq!(files_of_packages(packages.path()), expect);
        assert!(files_of_packages(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn a_named_folder_is_the_only_one() {
        let files = nvrtc_files(Some(Path::new("/opt/nvrtc")));
        assert_eq!(files, ["/opt/nvrtc/libnvrtc.so.12", "/opt/nvrtc/libnvrtc.so.13"].map(PathBuf::from));
    }
}
