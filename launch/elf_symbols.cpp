#include "launch/elf_symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace convoy {
namespace {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    struct stat status {};
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
      size_ = static_cast<uint64_t>(status.st_size);
      void* at = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
      if (at != MAP_FAILED) data_ = static_cast<const char*>(at);
    }
    close(fd);
  }
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Null where that goes beyond the file: it may be cut off or no ELF at all.
  template <class T>
  const T* at(uint64_t offset, uint64_t count = 1) const {
    if (data_ == nullptr || offset > size_ || count > (size_ - offset) / sizeof(T) || offset % alignof(T) != 0)
      return nullptr;
    return reinterpret_cast<const T*>(data_ + offset);
  }

 private:
  const char* data_ = nullptr;
  uint64_t size_ = 0;
};

struct Table {
  const Elf64_Sym* symbols = nullptr;
  uint64_t count = 0;
  const char* names = nullptr;
  uint64_t names_size = 0;
};

// The full table where there is one, else that of exported names.
Table table_of(const MappedFile& file, const Elf64_Ehdr& header) {
  Table found;
  const auto* sections = file.at<Elf64_Shdr>(header.e_shoff, header.e_shnum);
  if (sections == nullptr) return found;
  for (const uint32_t wanted : {SHT_SYMTAB, SHT_DYNSYM}) {
    for (int i = 0; i < header.e_shnum; ++i) {
      const Elf64_Shdr& section = sections[i];
      if (section.sh_type != wanted || section.sh_link >= header.e_shnum) continue;
      const Elf64_Shdr& text = sections[section.sh_link];
      Table table;
      table.count = section.sh_size / sizeof(Elf64_Sym);
      table.symbols = file.at<Elf64_Sym>(section.sh_offset, table.count);
      table.names_size = text.sh_size;
      table.names = file.at<char>(text.sh_offset, text.sh_size);
      if (table.symbols != nullptr && table.names != nullptr) return table;
    }
  }
  return found;
}

// Where the file asks to be loaded: 0 for libraries and for programs that may lie anywhere.
uint64_t base_of(const MappedFile& file, const Elf64_Ehdr& header) {
  const auto* segments = file.at<Elf64_Phdr>(header.e_phoff, header.e_phnum);
  for (int i = 0; segments != nullptr && i < header.e_phnum; ++i)
    if (segments[i].p_type == PT_LOAD) return segments[i].p_vaddr & ~uint64_t{4095};
  return 0;
}

}  // namespace

std::vector<std::string> elf_symbols(const std::string& path, const std::vector<uint64_t>& offsets) {
  std::vector<std::string> names(offsets.size());
  const MappedFile file(path);
  const auto* header = file.at<Elf64_Ehdr>(0);
  if (header == nullptr || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64)
    return names;
  const Table table = table_of(file, *header);
  const uint64_t base = base_of(file, *header);
  for (uint64_t i = 0; i < table.count; ++i) {
    const Elf64_Sym& symbol = table.symbols[i];
    const bool function = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF;
    if (!function || symbol.st_name >= table.names_size) continue;
    for (size_t k = 0; k < offsets.size(); ++k) {
      const uint64_t address = base + offsets[k];
      if (address < symbol.st_value || address >= symbol.st_value + std::max<uint64_t>(symbol.st_size, 1)) continue;
      const char* name = table.names + symbol.st_name;
      names[k].assign(name, strnlen(name, table.names_size - symbol.st_name));
    }
  }
  return names;
}

}  // namespace convoy
