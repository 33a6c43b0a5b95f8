// Who may write a folder, by owner, mode, group and access list.
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/files.h"

namespace convoy {
namespace {

constexpr size_t longest_entry = 1 << 16;  // of the user database

// Debian and others give each user a group of the same name, and with umask 002 its folders are group-writable.
bool is_private_group(uid_t owner, gid_t group) {
  std::string user_text(longest_entry, '\0'), group_text(longest_entry, '\0');
  struct passwd user {};
  struct passwd* found_user = nullptr;
  struct group members {};
  struct group* found_group = nullptr;
  if (getpwuid_r(owner, &user, user_text.data(), user_text.size(), &found_user) != 0 || found_user == nullptr)
    return false;
  if (getgrgid_r(group, &members, group_text.data(), group_text.size(), &found_group) != 0 || found_group == nullptr)
    return false;
  if (user.pw_gid != group || std::strcmp(user.pw_name, members.gr_name) != 0) return false;
  for (char** member = members.gr_mem; member != nullptr && *member != nullptr; ++member)
    if (std::strcmp(*member, user.pw_name) != 0) return false;
  return true;
}

bool has_access_list(const std::string& path) {
  return getxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) > 0;
}

}  // namespace

void refuse_writable_by_others(const std::string& folder) {
  struct stat status {
  }, link{};
  if (stat(folder.c_str(), &status) != 0 || lstat(folder.c_str(), &link) != 0)
    throw Error(Failure::output, str(folder, ": cannot be examined: ", std::strerror(errno)));
  const auto refuse = [&](const std::string& reason) { throw Error(Failure::refused, str(folder, ": ", reason)); };
  for (const uid_t owner : {status.st_uid, link.st_uid})
    if (owner != geteuid() && owner != 0)
      refuse(str("belongs to user ", owner, ", who can replace the run's files; give an --output of your own"));
  const bool others = (status.st_mode & S_IWOTH) != 0;
  const bool group =
      (status.st_mode & S_IWGRP) != 0 && (has_access_list(folder) || !is_private_group(status.st_uid, status.st_gid));
  if (others || group)
    refuse(str(others ? "every user" : str("group ", status.st_gid),
               " may write it and replace the run's files; type: ", "chmod go-w ", folder,
               ", or give another --output"));
}

}  // namespace convoy
