//! Where NVIDIA's compiler library may be.

use std::path::{Path, PathBuf};

use lode_kernels::cuda::NVRTC_FILES;

/// Folders of Python's packages `nvidia-cuda-nvrtc-cu12` (CUDA 12) and `nvidia-cuda-nvrtc` (CUDA 13).
const PACKAGE_FOLDERS: [&str; 2] = ["nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib"];
/// The folder of NVIDIA's own packages, which the system does not always know.
const TOOLKIT_FOLDER: &str = "/usr/local/cuda/lib64";
/// The variables of active virtual environments.
const ENVIRONMENTS: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];

/// The files to try, in this order: those of `folder` alone if the operator named one. Otherwise those of the
/// active virtual environment, those that the system finds by name, and those of a toolkit.
pub fn nvrtc_files(folder: Option<&Path>) -> Vec<PathBuf> {
    if let Some(folder) = folder {
        return NVRTC_FILES.map(|file| folder.join(file)).into();
    }
    let environments = ENVIRONMENTS.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let mut files: Vec<PathBuf> =
        environments.flat_map(|environment| files_of_packages(&environment)).collect();
    files.extend(NVRTC_FILES.map(PathBuf::from));
    files.extend(NVRTC_FILES.map(|file| Path::new(TOOLKIT_FOLDER).join(file)));
    files
}

/// The files in `lib/python*/site-packages` of an environment.
fn files_of_packages(environment: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    let pythons = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("python"));
    let mut files: Vec<PathBuf> = pythons
        .map(|entry| entry.path().join("site-packages"))
        .flat_map(|packages| PACKAGE_FOLDERS.map(|folder| packages.join(folder)))
        .flat_map(|folder| NVRTC_FILES.map(|file| folder.join(file)))
        .filter(|file| file.is_file())
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_an_environment_are_found() {
        let folder = tempfile::tempdir().unwrap();
        for path in
            ["nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cu13/lib/libnvrtc.so.13", "nvidia/x.so.12"]
        {
            let path = folder.path().join("lib/python3.11/site-packages").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let names = files_of_packages(folder.path());
        let packages = folder.path().join("lib/python3.11/site-packages/nvidia");
        assert_eq!(
            names,
            [packages.join("cu13/lib/libnvrtc.so.13"), packages.join("cuda_nvrtc/lib/libnvrtc.so.12")]
        );
        assert!(files_of_packages(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn a_named_folder_is_the_only_one() {
        let files = nvrtc_files(Some(Path::new("/opt/nvrtc")));
        assert_eq!(files, ["/opt/nvrtc/libnvrtc.so.12", "/opt/nvrtc/libnvrtc.so.13"].map(PathBuf::from));
    }
}
