"""Networks of images, films and points: torchvision, timm, transformers, and our own."""

from __future__ import annotations

import modules
from architecture import Architecture, Shapes, dense, image, language, vision

SMALL = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192}
PATCHES: Shapes = ((1, 3, 64, 64),)
FRAMES: Shapes = ((1, 4, 3, 32, 32),)


def _small(kind: str, shapes: Shapes = PATCHES, **options: object) -> Architecture:
    return Architecture(language(kind, "last_hidden_state", **{**SMALL, **options}), shapes)


IMAGES: dict[str, Architecture] = {
    "alexnet": Architecture(vision("alexnet")),
    "vgg11_bn": Architecture(vision("vgg11_bn")),
    "shufflenet_v2_x1_0": Architecture(vision("shufflenet_v2_x1_0")),
    "mnasnet1_0": Architecture(vision("mnasnet1_0")),
    "googlenet": Architecture(vision("googlenet", aux_logits=False, init_weights=False)),
    "wide_resnet50_2": Architecture(vision("wide_resnet50_2")),
    "convnext_tiny": Architecture(vision("convnext_tiny")),
    "swin_t": Architecture(vision("swin_t")),
    "swin_v2_t": Architecture(vision("swin_v2_t"), ((1, 3, 256, 256),)),
    "vit_b_32": Architecture(vision("vit_b_32")),
    "maxvit_t": Architecture(vision("maxvit_t")),
    "efficientnet_v2_s": Architecture(vision("efficientnet_v2_s")),
    "regnet_x_400mf": Architecture(vision("regnet_x_400mf")),
    "mobilenet_v3_small": Architecture(vision("mobilenet_v3_small")),
    "deeplabv3_mobilenet_v3": Architecture(dense("deeplabv3_mobilenet_v3_large")),
    "fcn_resnet50": Architecture(dense("fcn_resnet50"), ((1, 3, 128, 128),)),
    "r3d_18": Architecture(vision("r3d_18"), ((1, 3, 8, 56, 56),)),
    "s3d": Architecture(vision("s3d"), ((1, 3, 16, 112, 112),)),
    "raft_small": Architecture(
        vision("raft_small"),
        ((1, 3, 128, 128), (1, 3, 128, 128)),
    ),
    "retinanet_resnet50_fpn": Architecture(
        vision("retinanet_resnet50_fpn", weights_backbone=None), ((1, 3, 128, 128),)
    ),
    "deit_tiny": Architecture(image("deit_tiny_patch16_224")),
    "ghostnet_100": Architecture(image("ghostnet_100")),
    "mobilevit_xs": Architecture(image("mobilevit_xs"), ((1, 3, 256, 256),)),
    "mobilevitv2_050": Architecture(image("mobilevitv2_050"), ((1, 3, 256, 256),)),
    "mobilenetv4_conv_small": Architecture(image("mobilenetv4_conv_small")),
    "mobileone_s0": Architecture(image("mobileone_s0")),
    "hrnet_w18_small": Architecture(image("hrnet_w18_small")),
    "repvgg_a0": Architecture(image("repvgg_a0")),
    "dpn68": Architecture(image("dpn68")),
    "coatnet_nano_rw": Architecture(image("coatnet_nano_rw_224")),
    "mixer_s32": Architecture(image("mixer_s32_224")),
    "poolformer_s12": Architecture(image("poolformer_s12")),
    "resnest14d": Architecture(image("resnest14d")),
    "resmlp_12": Architecture(image("resmlp_12_224")),
    "gmlp_ti16": Architecture(image("gmlp_ti16_224")),
    "xcit_nano_12": Architecture(image("xcit_nano_12_p16_224")),
    "edgenext_xx_small": Architecture(image("edgenext_xx_small"), ((1, 3, 256, 256),)),
    "efficientformer_l1": Architecture(image("efficientformer_l1")),
    "levit_128s": Architecture(image("levit_128s")),
    "pit_ti": Architecture(image("pit_ti_224")),
    "skresnet18": Architecture(image("skresnet18")),
    "ese_vovnet19b_dw": Architecture(image("ese_vovnet19b_dw")),
    "cspdarknet53": Architecture(image("cspdarknet53")),
    "eca_nfnet_l0": Architecture(image("eca_nfnet_l0")),
    "fastvit_t8": Architecture(image("fastvit_t8"), ((1, 3, 256, 256),)),
    "focalnet_tiny_srf": Architecture(image("focalnet_tiny_srf")),
    "rexnet_100": Architecture(image("rexnet_100")),
    "segformer": Architecture(language("segformer", "last_hidden_state"), ((1, 3, 128, 128),)),
    "unet": Architecture(modules.UNet, ((1, 3, 96, 96),)),
    "pointnet": Architecture(modules.PointNet, ((1, 3, 256),)),
    "autoencoder": Architecture(modules.autoencoder, ((1, 1, 28, 28),)),
    "super_resolution": Architecture(modules.super_resolution, ((1, 1, 64, 64),)),
    "mobilenet_v3_large": Architecture(vision("mobilenet_v3_large")),
    "mc3_18": Architecture(vision("mc3_18"), ((1, 3, 8, 56, 56),)),
    "swin3d_t": Architecture(vision("swin3d_t"), ((1, 3, 8, 56, 56),)),
    "lraspp": Architecture(dense("lraspp_mobilenet_v3_large")),
    "clip_vision": _small("clip_vision_model", image_size=64, patch_size=16),
    "siglip_vision": _small("siglip_vision_model", image_size=64, patch_size=16),
    "dinov2": _small("dinov2", image_size=64, patch_size=16),
    "beit": _small("beit", image_size=64, patch_size=16, use_relative_position_bias=True),
    "videomae": _small("videomae", FRAMES, image_size=32, num_frames=4, patch_size=8),
    "timesformer": _small("timesformer", FRAMES, image_size=32, num_frames=4, patch_size=8),
    "swin2sr": Architecture(
        language(
            "swin2sr", "last_hidden_state", image_size=32, embed_dim=48, depths=[2, 2], num_heads=[4, 4]
        ),
        ((1, 3, 32, 32),),
    ),
    "diffusion": Architecture(modules.Denoiser, ((1, 4, 16, 16), (1,))),
    "vae": Architecture(modules.VariationalAutoencoder, ((1, 3, 32, 32),)),
    "srresnet": Architecture(modules.ResidualSuperResolution, ((1, 3, 32, 32),)),
    "nerf": Architecture(modules.RadianceField, ((1, 64, 3),)),
    "gnn": Architecture(modules.GraphNetwork, ((1, 40, 16), (1, 40, 40))),
}  # fmt: skip

for _name in [
    "mixnet_s",
    "lcnet_050",
    "res2net50_14w_8s",
    "dla34",
    "selecsls42",
    "cait_xxs24_224",
    "volo_d1_224",
    "pvt_v2_b0",
    "efficientvit_b0",
    "efficientvit_m0",
    "inception_next_atto",
    "mvitv2_tiny",
    "visformer_tiny",
    "eva02_tiny_patch14_224",
    "gcvit_xxtiny",
    "tiny_vit_5m_224",
    "starnet_s1",
    "repvit_m0_9",
    "convit_tiny",
    "ghostnetv2_100",
    "hgnetv2_b0",
    "fasternet_t0",
    "shvit_s1",
    "swiftformer_xs",
    "mambaout_femto",
    "resnetv2_50",
    "coat_lite_tiny",
    "tnt_s_patch16_224",
    "nextvit_small",
    "sequencer2d_s",
    "tresnet_m",
    "regnety_002",
    "tinynet_e",
    "convmixer_768_32",
    "vit_small_patch16_rope_224",
    "caformer_s18",
    "nf_regnet_b0",
    "hardcorenas_a",
    "davit_tiny",
]:
    IMAGES[_name] = Architecture(image(_name))
for _name, _side in (
    ("crossvit_tiny_240", 240), ("botnet26t_256", 256), ("lambda_resnet26t", 256), ("halonet26t", 256)
):  # fmt: skip
    IMAGES[_name] = Architecture(image(_name), ((1, 3, _side, _side),))
