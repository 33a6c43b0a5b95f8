// All that a configuration may name, gathered from every folder's catalogue.
#pragma once
#include "core/config/run_config.h"

namespace convoy {
Catalogues all_catalogues();
}
