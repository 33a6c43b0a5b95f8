#include "launch/catalogues.h"

#include "backends/catalogue.h"
#include "core/data/catalogue.h"
#include "core/losses/catalogue.h"
#include "core/optim/catalogue.h"
#include "models/catalogue.h"
#include "strategies/catalogue.h"

namespace convoy {

Catalogues all_catalogues() {
  Catalogues all;
  all.kinds["model"] = model_catalogue();
  all.kinds["data"] = dataset_catalogue();
  all.kinds["transform"] = transform_catalogue();
  all.kinds["loss"] = loss_catalogue();
  all.kinds["optimizer"] = optimizer_catalogue();
  all.kinds["schedule"] = schedule_catalogue();
  all.kinds["strategy"] = strategy_entries();
  std::vector<Entry>& backends = all.kinds["backend"];
  for (const BackendEntry& backend : backend_catalogue()) backends.push_back(backend);
  return all;
}

}  // namespace convoy
