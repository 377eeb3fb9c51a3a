//===- ModelConfig.h - The model that this program is built with ----------===//
//
// The build names the generated header and the model: BUDDY_MODEL_CONFIG_HEADER and BUDDY_MODEL.
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_APPS_LLAMA_MODELCONFIG_H
#define BUDDY_APPS_LLAMA_MODELCONFIG_H

#include BUDDY_MODEL_CONFIG_HEADER

namespace buddy::llama {

namespace model = buddy::models::BUDDY_MODEL;

} // namespace buddy::llama

#endif // BUDDY_APPS_LLAMA_MODELCONFIG_H
